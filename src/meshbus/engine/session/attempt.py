"""One connect under way: message 1 is sent again and again until message 2 verifies or the tries are used up.

Each try has an ephemeral key of its own and waits its full time; junk that comes instead of message 2 is counted and
changes nothing. Between tries there is a pause, longer each time and never twice the same, because two nodes that begin
with each other at the same moment must not stay in step. What follows from message 2 is decided in
engine/session/handshake.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import msgspec

from meshbus.engine.base.notices import HandshakeFailed
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.session.candidate import same_place
from meshbus.engine.session.link import Link
from meshbus.errors import HandshakeError, HandshakeFault, RemoteProtocolError
from meshbus.names.identity import Entropy
from meshbus.policy.limits import TokenBucket
from meshbus.wire.handshake import encode_handshake, encode_routed_handshake, pack_initiator_id
from meshbus.wire.header import Buffer
from meshbus.wire.keys import Role, SessionKeys, derive_keys
from meshbus.wire.noise import KEY_BYTES, Initiator, prologue

PAUSE_S = 0.1
"""Pause before the second try; before the third it is twice as long, and so on."""
JITTER_SHARE = 0.1
"""Up to this share of a try's time is added to a pause: longer than a round trip, so that one side comes first."""
ANSWER_RATE, ANSWER_BURST = 20.0, 40.0
"""Answers read a second from elsewhere than the address that was tried: each costs a curve operation."""


Carry = Callable[[Address, bytes, int, int, Output], None]
"""Sends a handshake message by node id: to which address, the message, from which node, to which one."""


def carry_routed(address: Address, message: bytes, sender: int, receiver: int, out: Output) -> None:
    """Send a handshake message behind a routing header, which every node understands."""
    out.send(address, encode_routed_handshake(message, sender=sender, receiver=receiver))


class Target(msgspec.Struct, frozen=True):
    """Whom to reach, where, and how."""

    node_id: int
    address: Address
    """The peer's own address, or that of a relay on the way to it."""
    public_key: bytes
    routed: bool
    straight: bool = False
    """The address is known to be the peer's own: its answer may still come by another way, as a 0.23 node's does when
    it has heard of us from a third one."""


class Phase(Enum):
    """What the timer of an attempt means."""

    WAITING = auto()
    """Message 1 is out."""
    PAUSING = auto()
    """The next message 1 is due then; a late message 2 still counts."""
    YIELDING = auto()
    """Message 2 came, but the peer's own attempt has precedence until then."""


class Attempt:
    """The initiator's side of a handshake, over all its tries."""

    __slots__ = (
        "_answers",
        "_carry",
        "_entropy",
        "_initiator",
        "_node_id",
        "_psk",
        "_timeout_s",
        "_tries",
        "due",
        "follows",
        "link",
        "number",
        "phase",
        "target",
        "unverified",
    )

    def __init__(
        self,
        target: Target,
        *,
        node_id: int,
        psk: bytes,
        entropy: Entropy,
        tries: int,
        timeout_s: float,
        carry: Carry = carry_routed,
        follows: bool = False,
    ) -> None:
        """Prepare the first try, so that a public key that cannot be one is refused before anything is sent."""
        self.target = target
        self.follows = follows
        """Whether its address is what the routing table said, and changes with it."""
        self._node_id = node_id
        self._psk = psk
        self._entropy = entropy
        self._carry = carry
        self._tries = tries
        self._timeout_s = timeout_s
        self._initiator = self._begin()
        self._answers = TokenBucket(ANSWER_RATE, ANSWER_BURST)
        self.number = 0
        """Tries made."""
        self.phase = Phase.PAUSING
        self.due = 0.0
        self.unverified = 0
        """Answers that were no message 2 of this handshake."""
        self.link: Link | None = None
        """The session of an attempt that yields."""

    def send(self, now: float, out: Output) -> None:
        """Send message 1 of the next try."""
        if self.number:
            self._initiator = self._begin()
        target = self.target
        try:
            message = self._initiator.write(pack_initiator_id(self._node_id) if target.routed else b"")
        except RemoteProtocolError as error:
            raise HandshakeError(
                HandshakeFault.WRONG_KEY, f"{target.public_key.hex()} cannot be a public key ({error})"
            ) from error
        if target.routed:
            self._carry(target.address, message, self._node_id, target.node_id, out)
        else:
            out.send(target.address, encode_handshake(message))
        self.number += 1
        self.phase = Phase.WAITING
        self.due = now + self._timeout_s

    def redirect(self, address: Address) -> None:
        """Try another way at once; the try that was under way does not count."""
        if self.follows and self.phase is not Phase.YIELDING and not same_place(address, self.target.address):
            self.target = msgspec.structs.replace(self.target, address=address)
            self.phase, self.due = Phase.PAUSING, 0.0
            self.number = max(self.number - 1, 1)

    def read(self, message: Buffer, source: Address, now: float) -> SessionKeys | None:
        """Take a message as message 2; None when it is not, and the attempt goes on."""
        if self.phase is Phase.YIELDING:
            return None
        if not same_place(source, self.target.address) and not self._answers.take(1, now):
            return None
        try:
            self._initiator.read(message)
        except RemoteProtocolError:
            return None
        return derive_keys(self._initiator.handshake_hash, Role.INITIATOR)

    def hold(self, link: Link, until: float) -> None:
        """Keep the finished session back, for the peer's own attempt to win."""
        self.link = link
        self.phase = Phase.YIELDING
        self.due = until

    def advance(self, now: float, out: Output) -> bool:
        """Do what is due; False when the last try has failed."""
        if self.phase is Phase.PAUSING:
            self.send(now, out)
            return True
        if self.number >= self._tries:
            return False
        jitter = int.from_bytes(self._entropy(4), "little") / (1 << 32)
        self.phase = Phase.PAUSING
        self.due = now + PAUSE_S * self.number + jitter * JITTER_SHARE * self._timeout_s
        return True

    def failure(self) -> HandshakeFailed:
        """Say why no session came of it, and what to check."""
        target = self.target
        asked = f"{self._tries} tries of {self._timeout_s:g} s"
        if self.unverified:
            fault = HandshakeFault.WRONG_KEY
            found = f"{_show(target.address)} sent {self.unverified} answers that did not verify in {asked}"
        else:
            fault = HandshakeFault.TIMEOUT
            found = f"no answer from {_show(target.address)} in {asked}"
        return HandshakeFailed(target.node_id, fault, f"{found}: check {self._suspects()}")

    def _suspects(self) -> str:
        target = self.target
        suspects = (
            "the address, that both nodes have the same mesh key (psk), that the node there has the id "
            f"{target.node_id:016x} and, at this moment, the public key {target.public_key.hex()[:16]}…"
            " (a net-mesh node makes a new one at every start)"
        )
        if target.routed:
            return (
                f"{suspects}; a peer that had connected to this node answers only after its old session was silent"
                " for its session timeout"
            )
        return f"{suspects}, and that it is accepting node {self._node_id:016x}; one that runs already wants routed"

    def _begin(self) -> Initiator:
        return Initiator(
            psk=self._psk,
            prologue=prologue(self._node_id, self.target.node_id),
            responder_public_key=self.target.public_key,
            ephemeral_private_key=self._entropy(KEY_BYTES),
        )


def _show(address: Address) -> str:
    match address:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address)
