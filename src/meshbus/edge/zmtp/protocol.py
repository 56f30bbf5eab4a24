"""State machine of one ZMTP connection: takes bytes and the time, returns bytes and events.

    GREETING ──► HANDSHAKE ──► READY ──► CLOSED
                   ▲    │
                   └ JUDGED: the application checks the credentials; received bytes wait

Input from the peer never raises. It results in an `Output`: bytes to send, messages (for subscribers), requests (for
publishers), and at the end a close reason. The result does not depend on how the stream was split into reads.

Rules that follow libzmq's behavior:

* Only the handshake is sent before the peer's READY is received (pubsub.md §3.3).
* Subscriptions are commands between 3.1 peers and data frames (`01` or `00`, then the prefix) with a 3.0 peer. An XSUB
  sends data frames to any peer, so a publisher accepts both, in every part of a message (pubsub.md §3.6).
* Unknown commands are ignored after the handshake; data during the handshake closes the connection (pubsub.md §3.2).
* Any received data shows that the peer is alive. A PING says how long its sender may be silent, in tenths of a second;
  the PONG returns its context, cut to 16 bytes (pubsub.md §3.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from math import inf
from typing import TypeAlias

import msgspec

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.framing import COMMAND, MORE, Frame, FrameReader, encode_command, encode_frame, split_command
from meshbus.edge.zmtp.greeting import GREETING_BYTES, decode_greeting, encode_greeting
from meshbus.edge.zmtp.mechanism import Credentials, Handshake, Step, Verdict
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.policy.bound import Bound, By

HANDSHAKE_BYTES = 8192
"""Longest command of a handshake, and most bytes that may wait for a verdict; libzmq's longest has 300 bytes."""
PART_BYTES = 64
"""Memory counted for each part of a message besides its bytes, about a Python object, so that empty parts are bounded."""
MAX_CONTEXT_BYTES = 16
"""pubsub.md §3.7."""
MAX_TTL = 655
"""Longest time to live, in tenths of a second: libzmq multiplies it by 100 in 16 bits."""
MAX_PONGS = 16
"""PONGs per read: more PINGs than that are not needed to check a connection."""

_SUBSCRIBE, _CANCEL = b"\x09SUBSCRIBE", b"\x06CANCEL"
"""The starts of the commands that a subscriber sends: the length of the name, and the name (pubsub.md §3.6)."""
_SUBSCRIBE_BYTES, _CANCEL_BYTES = len(_SUBSCRIBE), len(_CANCEL)


BOUNDS = (
    Bound(
        name="pongs",
        what="answers to pings that wait for a ZeroMQ peer",
        by=By.OUTSIDER,
        per_node=None,
        per={"connection": MAX_PONGS},
        full="further pings are not answered",
        counter="none: libzmq sends one at a time",
    ),
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection."""

    max_message_bytes: int
    """All parts of a message, with PART_BYTES added for each; also the longest prefix of a subscription."""
    handshake_timeout_s: float = 30.0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """How dead peers are detected."""

    interval_s: float
    timeout_s: float | None = None
    """How long after a PING something must be received; by default the interval."""
    ttl_s: float = 0.0
    """How long the peer may receive nothing before it closes the connection; 0 leaves it to the peer."""


class Ready(msgspec.Struct, frozen=True):
    """The handshake is done."""

    minor: int
    """0 for a ZMTP 3.0 peer."""
    properties: dict[str, bytes]
    """The peer's properties, by lower-case name."""


class Interest(msgspec.Struct, frozen=True, gc=False):
    """A subscription to a prefix, or its cancellation; a subscriber may send thousands at once."""

    prefix: bytes
    subscribe: bool


class Upstream(msgspec.Struct, frozen=True):
    """A message from an XSUB socket to an XPUB socket."""

    parts: tuple[bytes, ...]


Request: TypeAlias = Interest | Upstream


class Closed(msgspec.Struct, frozen=True):
    """The connection is closed."""

    reason: CloseReason
    detail: str = ""


class Output(msgspec.Struct):
    """Result of one call of a session."""

    send: bytes = b""
    ready: Ready | None = None
    ask: Credentials | None = None
    """Credentials to check; call `decide` with the verdict."""
    messages: list[tuple[bytes, ...]] = []
    requests: list[Request] = []
    closed: Closed | None = None


class _State(Enum):
    GREETING = auto()
    HANDSHAKE = auto()
    JUDGED = auto()
    READY = auto()
    CLOSED = auto()


class Session:
    """One side of one connection."""

    def __init__(
        self,
        socket_type: SocketType,
        handshake: Handshake,
        *,
        now: float,
        limits: Limits,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.socket_type = socket_type
        self._handshake = handshake
        self._limits = limits
        self._heartbeat = heartbeat
        self._state = _State.GREETING
        self._reader = FrameReader()
        self._minor = 0
        self._parts: list[bytes] = []
        """Parts of an incomplete message."""
        self._parts_bytes = 0
        self._pongs = 0
        self._handshake_until = now + limits.handshake_timeout_s
        self._ping_at = inf
        self._silent_at = inf
        """When the connection is closed unless something is received."""

    @property
    def is_ready(self) -> bool:
        """Whether messages and subscriptions may be sent."""
        return self._state is _State.READY

    @property
    def is_sealed(self) -> bool:
        """Whether frames must be encrypted with `seal`; if not, one encoding is shared by all peers."""
        return self._handshake.cipher is not None

    def greet(self) -> bytes:
        """Return the greeting, which is sent before anything is received."""
        return encode_greeting(self._handshake.mechanism, as_server=self._handshake.as_server)

    def receive(self, data: bytes, now: float) -> Output:  # hot: bench_edge
        """Handle received bytes."""
        out = Output()
        if self._state is not _State.CLOSED:
            # pubsub.md §3.7: any received data cancels the timeouts of PING and TTL. Empty data does so too, which
            # edge/connection.py uses while reading is paused.
            self._silent_at = inf
            self._pongs = 0
            self._reader.feed(data)
            self._run(out, now)
        return out

    def decide(self, verdict: Verdict, now: float) -> Output:
        """Continue with the application's verdict on the credentials; ignored if none is pending."""
        out = Output()
        if self._state is _State.JUDGED:
            self._state = _State.HANDSHAKE
            self._take_step(self._handshake.decide(verdict), out, now)
            self._run(out, now)
        return out

    def end(self) -> Output:
        """Handle that the peer closed the connection."""
        out = Output()
        if self._state is _State.READY:
            self._close(out, CloseReason.EOF)
        elif self._state is not _State.CLOSED:
            due = "greeting" if self._state is _State.GREETING else self._handshake.awaits
            self._close(out, CloseReason.CLOSED_IN_HANDSHAKE, f"the peer closed the connection before its {due}")
        return out

    def next_timer(self) -> float | None:
        """Return when `tick` must be called next, or None."""
        if self._state is _State.CLOSED:
            return None
        at = min(self._ping_at, self._silent_at) if self._state is _State.READY else self._handshake_until
        return None if at == inf else at

    def tick(self, now: float) -> Output:
        """Handle timers that are due."""
        out = Output()
        if self._state is _State.CLOSED:
            return out
        if self._state is not _State.READY:
            if now >= self._handshake_until:
                seconds = self._limits.handshake_timeout_s
                self._close(out, CloseReason.HANDSHAKE_TIMEOUT, f"the handshake took more than {seconds:g} s")
        elif now >= self._silent_at:
            self._close(out, CloseReason.SILENT, "nothing received for longer than the heartbeat allows")
        elif now >= self._ping_at:
            self._ping(out, now)
        return out

    def encode_interest(self, interest: Interest) -> bytes:
        """Encode a subscription or cancellation in the form that the peer's version understands."""
        # pubsub.md §3.6: a 3.0 peer knows no SUBSCRIBE command; it expects a data frame.
        if self._minor == 0:
            frame = encode_frame((b"\x01" if interest.subscribe else b"\x00") + interest.prefix)
        else:
            frame = encode_command(b"SUBSCRIBE" if interest.subscribe else b"CANCEL", interest.prefix)
        return self.seal(frame)

    def seal(self, frames: bytes) -> bytes:
        """Encrypt plain frames if the mechanism encrypts, else return them unchanged."""
        cipher = self._handshake.cipher
        return frames if cipher is None else cipher.seal(frames)

    def _run(self, out: Output, now: float) -> None:
        """Process the buffered bytes as far as possible; a violation closes the connection."""
        try:
            if self._state is _State.GREETING:
                self._greeting(out, now)
            # One frame at a time: the frame may end the handshake, and the rest then has another limit and meaning.
            while self._state is _State.HANDSHAKE and (frames := self._frames(HANDSHAKE_BYTES, most=1)):
                self._handshake_frame(frames[0], out, now)
            if self._state is _State.READY:
                self._established(out, now)
        except Violation as violation:
            self._close(out, violation.reason, violation.detail)
        # No frame is read while a verdict is pending, so the buffer must be bounded here.
        if self._state is _State.JUDGED and self._reader.held > HANDSHAKE_BYTES:
            problem = f"more than {HANDSHAKE_BYTES} bytes received before the handshake was done"
            self._close(out, CloseReason.TOO_LONG, problem)

    def _frames(self, limit: int, most: int) -> list[Frame]:
        frames = self._reader.frames(limit, most)
        if not frames and self._reader.violation is not None:
            raise self._reader.violation
        return frames

    def _greeting(self, out: Output, now: float) -> None:
        greeting = decode_greeting(self._reader.peek())
        if greeting is None:
            return
        self._reader.skip(GREETING_BYTES)
        # pubsub.md §3.1: the names must be equal byte for byte; there is no negotiation of the mechanism.
        if greeting.mechanism != self._handshake.mechanism:
            theirs, ours = greeting.mechanism.decode("ascii", "replace"), self._handshake.mechanism.decode()
            problem = f"the peer uses {theirs!r}, this endpoint {ours!r}; configure the same security on both"
            raise Violation(CloseReason.MECHANISM_MISMATCH, problem)
        self._minor = greeting.minor
        self._state = _State.HANDSHAKE
        self._take_step(self._handshake.begin(), out, now)

    def _handshake_frame(self, frame: Frame, out: Output, now: float) -> None:
        flags, body = frame
        # pubsub.md §3.2: libzmq also closes the connection when data arrives during the handshake.
        if not flags & COMMAND:
            raise Violation(CloseReason.UNEXPECTED, "received data during the handshake")
        self._take_step(self._handshake.receive(body), out, now)

    def _take_step(self, step: Step, out: Output, now: float) -> None:
        out.send += step.send
        if step.denied is not None:
            self._close(out, CloseReason.DENIED, f"the peer's credentials were refused with status {step.denied:d}")
        elif step.ask is not None:
            self._state = _State.JUDGED
            out.ask = step.ask
        elif step.properties is not None:
            self._state = _State.READY
            out.ready = Ready(self._minor, step.properties)
            if self._heartbeat is not None:
                self._ping_at = now + self._heartbeat.interval_s

    def _established(self, out: Output, now: float) -> None:
        frames: Iterable[Frame] = self._reader.frames(self._frame_limit())
        if self._handshake.cipher is not None:
            frames = self._opened(frames)
        if self.socket_type.publishes:
            self._take_requests(frames, out, now)
        else:
            self._take_messages(frames, out, now)
        # Raised after the frames before it were handled, so that the result does not depend on how the stream was split.
        if self._reader.violation is not None:
            raise self._reader.violation

    def _frame_limit(self) -> int:
        """Return the longest frame, with room for what a command or a CURVE box adds to the longest body."""
        return self._limits.max_message_bytes + PART_BYTES

    def _opened(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        cipher = self._handshake.cipher
        assert cipher is not None
        for flags, body in frames:
            # pubsub.md §3.5: MORE and COMMAND are inside the box. An outer COMMAND is accepted: some peers set it.
            if flags & MORE:
                raise Violation(CloseReason.BAD_FLAGS, "the MORE flag is set outside of a CURVE box")
            yield cipher.open(body)

    def _take_messages(self, frames: Iterable[Frame], out: Output, now: float) -> None:  # hot: bench_edge
        messages, parts = out.messages, self._parts
        for flags, body in frames:
            if flags & COMMAND:
                self._take_command(body, out, now)
                continue
            if flags & MORE or parts:
                self._keep_part(body)
                if flags & MORE:
                    continue
                messages.append(tuple(parts))
                parts.clear()
                self._parts_bytes = 0
            else:
                messages.append((body,))

    def _take_requests(self, frames: Iterable[Frame], out: Output, now: float) -> None:  # hot: bench_edge
        """Take subscriptions from every part of a message, as libzmq does; other parts go to the application."""
        add = out.requests.append
        for flags, body in frames:
            if flags & COMMAND:
                if body.startswith(_SUBSCRIBE):
                    add(Interest(body[_SUBSCRIBE_BYTES:], True))
                elif body.startswith(_CANCEL):
                    add(Interest(body[_CANCEL_BYTES:], False))
                else:
                    self._take_command(body, out, now)
                continue
            # pubsub.md §3.6: XSUB sends subscriptions as data, also to 3.1 peers; libzmq checks every part for them.
            if body[:1] in {b"\x00", b"\x01"}:
                add(Interest(body[1:], body[0] == 1))
            else:
                self._keep_part(body)
            if not flags & MORE and self._parts:
                add(Upstream(tuple(self._parts)))
                self._parts.clear()
                self._parts_bytes = 0

    def _keep_part(self, body: bytes) -> None:
        self._parts.append(body)
        self._parts_bytes += len(body) + PART_BYTES
        if self._parts_bytes > self._limits.max_message_bytes + PART_BYTES:
            limit = self._limits.max_message_bytes
            problem = f"a message of {len(self._parts)} parts exceeds the limit of {limit} bytes"
            raise Violation(CloseReason.TOO_LONG, problem)

    def _take_command(self, body: bytes, out: Output, now: float) -> None:
        name, data = split_command(body)
        if name == b"PING":
            self._pong(data, out, now)
        elif name == b"ERROR":  # other commands are ignored: a later version of ZMTP may add some
            raise Violation(CloseReason.REFUSED, f"the peer sent ERROR: {data[1:].decode('utf-8', 'replace')}")

    def _ping(self, out: Output, now: float) -> None:
        heartbeat = self._heartbeat
        assert heartbeat is not None
        # pubsub.md §3.7: tenths of a second, and at most what libzmq can multiply in 16 bits.
        ttl = min(round(heartbeat.ttl_s * 10), MAX_TTL)
        out.send += self.seal(encode_command(b"PING", ttl.to_bytes(2, "big")))
        timeout_s = heartbeat.interval_s if heartbeat.timeout_s is None else heartbeat.timeout_s
        self._silent_at = min(self._silent_at, now + timeout_s)  # the TTL of the peer's PING may end earlier
        self._ping_at = now + heartbeat.interval_s

    def _pong(self, data: bytes, out: Output, now: float) -> None:
        if len(data) < 2:
            raise Violation(CloseReason.MALFORMED, f"PING must have a time to live of 2 bytes, got {len(data)}")
        ttl = int.from_bytes(data[:2], "big")
        if ttl:
            # pubsub.md §3.7: the sender of a PING is dead if nothing arrives for its TTL.
            self._silent_at = min(self._silent_at, now + ttl / 10)
        if self._pongs < MAX_PONGS:
            self._pongs += 1
            out.send += self.seal(encode_command(b"PONG", data[2 : 2 + MAX_CONTEXT_BYTES]))

    def _close(self, out: Output, reason: CloseReason, detail: str = "") -> None:
        self._state = _State.CLOSED
        out.closed = Closed(reason, detail)
