"""Attempt: the initiator's side of one handshake; sends message 1 until message 2 verifies or all tries are used.

Each try has its own ephemeral key and waits for the full timeout (transport.md §10.2). A message that is no valid
message 2 is counted and changes nothing. The pauses between tries get longer and have random jitter, so that two nodes
which begin with each other at the same moment do not stay in step (transport.md §10.3). What follows from message 2 is
decided in engine/session/handshake.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import msgspec

from meshbus.engine.base.notices import HandshakeFailed, HandshakeUnanswered
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
"""Pause before the second try; n times as long after the n-th try (transport.md §10.2)."""
JITTER_SHARE = 0.1
"""Largest share of the timeout added to a pause. Our choice: longer than a round trip, so that one side comes first."""
QUIET_S = 2.0
"""How long an attempt may be without an answer before that is reported. Our choice: longer than round trips and retries of
a working path, and soon enough for somebody who waits."""
OTHER_KEY_S = 1.0
"""How long an answer under one mesh key is awaited before the other one is tried, while a mesh changes its key. Our choice:
several round trips, and much less than the timeout of a try, because half of the fleet has only one of them."""
ANSWER_RATE, ANSWER_BURST = 20.0, 40.0
"""Answers read per second from other addresses than the one tried: each costs a curve operation. As in budget.py."""


Carry = Callable[[Address, bytes, int, int, Output], None]
"""Sends a handshake message: address, message, node id of the sender, node id of the receiver."""


def carry_routed(address: Address, message: bytes, sender: int, receiver: int, out: Output) -> None:
    """Send a handshake message behind a routing header, which every running node understands."""
    out.send(address, encode_routed_handshake(message, sender=sender, receiver=receiver))


class Target(msgspec.Struct, frozen=True):
    """The node to reach, its address, and the kind of handshake."""

    node_id: int
    address: Address
    """The peer's own address, or that of a relay on the way to it."""
    public_key: bytes
    routed: bool
    straight: bool = False
    """Whether the address is known to be the peer's own.

    Its answer may still come from elsewhere: a 0.23 node answers through its routing table (transport.md §10.3)."""
    given_key: bytes | None = None
    """The key that the user gave, from which the Noise key was derived; None if it was the Noise key itself."""


class Phase(Enum):
    """What an attempt waits for until its deadline."""

    WAITING = auto()
    """Message 1 was sent; message 2 is expected."""
    PAUSING = auto()
    """The next message 1 is sent at the deadline; a late message 2 still counts."""
    YIELDING = auto()
    """Message 2 arrived, but the peer's own attempt has precedence until the deadline."""


class Attempt:
    """The initiator's side of a handshake, over all its tries."""

    __slots__ = (
        "_answers",
        "_carry",
        "_entropy",
        "_initiator",
        "_node_id",
        "_psks",
        "_timeout_s",
        "_tries",
        "due",
        "due_quiet",
        "follows",
        "link",
        "number",
        "phase",
        "psk",
        "refused",
        "target",
        "unverified",
    )

    def __init__(
        self,
        target: Target,
        *,
        node_id: int,
        psks: tuple[bytes, ...],
        entropy: Entropy,
        tries: int,
        timeout_s: float,
        carry: Carry = carry_routed,
        follows: bool = False,
    ) -> None:
        """Prepare the first try, so that an unusable public key is refused before anything is sent.

        The tries take the mesh keys in turn, the first one first; each key gets as many as `tries`.
        """
        self.target = target
        self.follows = follows
        """Whether the address came from the routing table and changes with it."""
        self._node_id = node_id
        self._psks = psks
        self._entropy = entropy
        self._carry = carry
        self._tries = tries * len(psks)
        self._timeout_s = timeout_s
        self._answers = TokenBucket(ANSWER_RATE, ANSWER_BURST)
        self.number = 0
        """Number of tries so far."""
        self.psk = psks[0]
        """The mesh key of the last try."""
        self._initiator = self._begin()
        self.phase = Phase.PAUSING
        self.due = 0.0
        self.unverified = 0
        """Number of answers that were no valid message 2 of this handshake."""
        self.link: Link | None = None
        """The finished session while the attempt yields."""
        self.refused = False
        """Whether the machine at the address reported that nothing listens there."""
        self.due_quiet: float | None = None
        """When the lack of an answer is reported; None if it was."""

    def send(self, now: float, out: Output) -> None:
        """Send message 1 of the next try."""
        # transport.md §10.2: every try has a new ephemeral. The first one was made by the constructor.
        if self.number:
            self._initiator = self._begin()
        target = self.target
        try:
            message = self._initiator.write(pack_initiator_id(self._node_id) if target.routed else b"")
        except RemoteProtocolError as error:
            raise HandshakeError(
                HandshakeFault.WRONG_KEY,
                f"{target.public_key.hex()} is not a usable public key ({error}); pass the peer's Noise static key",
            ) from error
        if target.routed:
            self._carry(target.address, message, self._node_id, target.node_id, out)
        else:
            out.send(target.address, encode_handshake(message))
        self.number += 1
        self.phase = Phase.WAITING
        self.due = now + self._patience_s()
        if self.number == 1 and self._tries > 1:  # with one try, the failure is the report
            self.due_quiet = now + min(QUIET_S, self._timeout_s)

    def redirect(self, address: Address) -> None:
        """Try another address at once; the try in progress does not count."""
        if self.follows and self.phase is not Phase.YIELDING and not same_place(address, self.target.address):
            self.target = msgspec.structs.replace(self.target, address=address)
            self.phase, self.due = Phase.PAUSING, 0.0
            # Not below 1: the next `send` must make a new ephemeral, because the last one was already sent.
            self.number = max(self.number - 1, 1)

    def read(self, message: Buffer, source: Address, now: float) -> SessionKeys | None:
        """Read a message as message 2 and return the session keys, or None if it is none and the attempt continues."""
        if self.phase is Phase.YIELDING:
            return None
        # A relay or a routing table may send the answer from another address, but so can an attacker: limit the work.
        if not same_place(source, self.target.address) and not self._answers.take(1, now):
            return None
        try:
            self._initiator.read(message)
        except RemoteProtocolError:
            return None
        return derive_keys(self._initiator.handshake_hash, Role.INITIATOR)

    def hold(self, link: Link, until: float) -> None:
        """Hold back the finished session, so that the peer's own attempt can win."""
        self.link = link
        self.phase = Phase.YIELDING
        self.due = until

    def advance(self, now: float, out: Output) -> bool:
        """Begin the next pause or try, and return False if the last try has failed."""
        if self.phase is Phase.PAUSING:
            self.send(now, out)
            return True
        if self.number >= self._tries:
            return False
        jitter = int.from_bytes(self._entropy(4), "little") / (1 << 32)
        self.phase = Phase.PAUSING
        self.due = now + PAUSE_S * self.number + jitter * JITTER_SHARE * self._timeout_s
        return True

    def unanswered(self) -> HandshakeUnanswered:
        """Return the notice that there is no answer yet."""
        self.due_quiet = None
        left = "no answer yet" if self.number < self._tries else "no answer"
        return HandshakeUnanswered(
            self.target.node_id, self._refusal() or f"{left} from {_show(self.target.address)}; trying again"
        )

    def failure(self) -> HandshakeFailed:
        """Return the notice that says why the handshake failed and what to check."""
        target = self.target
        asked = f"{self._tries} {'try' if self._tries == 1 else 'tries'} of {self._timeout_s:g} s"
        if self.unverified:
            found = f"{_show(target.address)} sent {self.unverified} answers that did not verify in {asked}"
            return HandshakeFailed(target.node_id, HandshakeFault.WRONG_KEY, f"{found}; check {self._suspects()}")
        found = self._refusal() or f"no answer from {_show(target.address)} in {asked}; {self._causes()}"
        return HandshakeFailed(target.node_id, HandshakeFault.TIMEOUT, found)

    def _refusal(self) -> str:
        """Return what the machine at the address reported, or nothing."""
        if not self.refused:
            return ""
        where = _show(self.target.address)
        return f"no program listens at {where}, the machine there reports; start the node, or correct the port"

    def _causes(self) -> str:
        """Return what an attempt without any answer can mean, and how to find out: a node answers no wrong key."""
        # A handshake for another node id is a packet for somebody else (transport.md §7), which only peers may send.
        causes = (
            "a node does not answer a wrong key, but counts it: run `meshbus counters` there; drop.handshake_unverified means"
            " another mesh key (psk), drop.transit_stranger another public key, and neither that no packet arrives, so check"
            f" the address and the firewall; then check {self._suspects()}"
        )
        if self.target.routed:
            # mesh.md §3 step 3: a 0.23 node that had initiated its session refuses another one while that is in use.
            return (
                f"{causes}; a net-mesh node that had connected to this one answers only after the old session was silent"
                " for its session timeout"
            )
        return (
            f"{causes}, and that it is accepting node {self._node_id:016x};"
            " a node that is already running answers only routed handshakes"
        )

    def _suspects(self) -> str:
        target = self.target
        key = f"that its public key is {(target.given_key or target.public_key).hex()}"
        if target.given_key is None:
            key += " (a net-mesh node makes a new one at every start)"
        return (
            f"that both nodes have the same mesh key, that the node there has the id {target.node_id:016x}, and {key}"
        )

    def _patience_s(self) -> float:
        """Return how long the answer to this try is awaited: not for long if the next try has another mesh key."""
        return self._timeout_s if self.psk == self._psks[-1] else min(OTHER_KEY_S, self._timeout_s)

    def _begin(self) -> Initiator:
        self.psk = self._psks[self.number % len(self._psks)]
        return Initiator(
            psk=self.psk,
            prologue=prologue(self._node_id, self.target.node_id),
            responder_public_key=self.target.public_key,
            ephemeral_private_key=self._entropy(KEY_BYTES),
        )


def _show(address: Address) -> str:
    match address:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address)
