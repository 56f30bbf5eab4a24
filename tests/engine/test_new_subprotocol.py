"""How to add a subprotocol: a message, a service and a row.

The example is an echo. Its messages are a codec pair (in the package: a file of wire/messages), its service answers
them (a file of the engine), and its row in the table makes nodes announce it, negotiate it and dispatch its packets.
"""

from __future__ import annotations

import msgspec
import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.services import SERVICES
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Row, Service
from meshbus.engine.streams.streams import Streams
from meshbus.errors import Fault, MalformedPacket, PeerError, PeerFault, RemoteProtocolError
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from tests.engine.fleet import Wiretap, meet

# ── the messages ────────────────────────────────────────────────────────────────────────────

ECHO, SURE_ECHO = 0x7EC0, 0x7EC1


class Echo(msgspec.Struct, frozen=True):
    """A question, which is to be sent back, or the answer to one."""

    text: str
    is_answer: bool = False


def encode_echo(message: Echo) -> bytes:
    """Encode a message: one byte for its kind, then the text."""
    return bytes([message.is_answer]) + message.text.encode()


def decode_echo(buffer: Buffer) -> Echo:
    """Decode a message; raises MalformedPacket."""
    data = bytes(buffer)
    if not data or data[0] > 1:
        raise MalformedPacket("echo", Fault.UNKNOWN_KIND, data[:1].hex())
    try:
        return Echo(data[1:].decode(), bool(data[0]))
    except UnicodeDecodeError as error:
        raise MalformedPacket("echo", Fault.BAD_TEXT) from error


# ── the service ─────────────────────────────────────────────────────────────────────────────


class Echoes(Service):
    """Sends questions, and sends those of peers back."""

    id = ECHO

    def __init__(self, context: Context) -> None:
        self.answers: list[tuple[int, str]] = []
        self.asked: list[tuple[int, str]] = []
        self._counters = context.counters

    def ask(self, peer: Peer, text: str, now: float, out: Output) -> None:
        """Ask a peer; raise PeerError if the echo was not negotiated with it."""
        if not peer.uses(self.id):
            raise PeerError(PeerFault.UNREACHABLE, peer.node_id, "echo was not negotiated")
        self._send(peer, Echo(text), now, out)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Answer a question, or keep an answer."""
        try:
            heard = decode_echo(message)
        except RemoteProtocolError:
            self._counters.add("drop", "echo_malformed")
            return
        if heard.is_answer:
            self.answers.append((peer.node_id, heard.text))
        else:
            self.asked.append((peer.node_id, heard.text))
            self._send(peer, Echo(heard.text, is_answer=True), now, out)

    def _send(self, peer: Peer, message: Echo, now: float, out: Output) -> None:
        peer.send_message(self.id, encode_echo(message), out)


class SureEchoes(Echoes):
    """The same on reliable streams, where nothing is lost and everything stays in order."""

    id = SURE_ECHO

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._streams = context.services[Streams]

    def _send(self, peer: Peer, message: Echo, now: float, out: Output) -> None:
        self._streams.send_reliable(peer, self.id, encode_echo(message), now, out)


# ── the rows ────────────────────────────────────────────────────────────────────────────────

TABLE = (
    *SERVICES,
    Row(Echoes, ECHO, "echo", profile=True),
    Row(SureEchoes, SURE_ECHO, "sure-echo", profile=True, reliable=True, needs=Subprotocol.RELIABLE),
)


# ── and it works ────────────────────────────────────────────────────────────────────────────


def two(*, left: tuple[Row, ...] = TABLE) -> tuple[FakeNet, FakeNode, FakeNode]:
    net = FakeNet(seed=3)
    nodes = net.create("left", table=left), net.create("right", table=TABLE)
    meet(*nodes)
    return net, *nodes


def ask(node: FakeNode, other: FakeNode, *texts: str, kind: type[Echoes] = Echoes) -> None:
    with node.turn() as (engine, now, out):
        for text in texts:
            engine.services[kind].ask(engine.peers.require(other.node_id), text, now, out)


def test_both_sides_announce_negotiate_and_use_it() -> None:
    net, left, right = two()
    tap = Wiretap(net)
    for node, other in ((left, right), (right, left)):
        assert "subprotocol:0x7ec0" in node.engine.announcer.capabilities.tags
        assert {ECHO, SURE_ECHO} <= node.engine.peers.require(other.node_id).negotiated.compatible
    ask(left, right, "from left")
    ask(right, left, "from right")
    net.run(for_s=0.1)
    assert left.engine.services[Echoes].answers == [(right.node_id, "from left")]
    assert right.engine.services[Echoes].answers == [(left.node_id, "from right")]
    assert tap.messages(ECHO) == 4
    assert left.events == right.events == [], "messages of a service are not for the application"


def test_messages_of_a_peer_that_did_not_negotiate_it_are_dropped() -> None:
    net, left, right = two(left=SERVICES)
    assert ECHO not in right.engine.peers.require(left.node_id).negotiated
    with pytest.raises(PeerError, match="echo was not negotiated"):
        ask(right, left, "hello")
    with left.turn() as (engine, _now, out):
        for id_ in (ECHO, SURE_ECHO):
            engine.peers.require(right.node_id).send_message(id_, encode_echo(Echo("hello")), out)
    net.run(for_s=0.1)
    for kind in (Echoes, SureEchoes):
        assert right.engine.services[kind].asked == []
    # A row of the table makes the id the profile's: no application gets its messages.
    assert right.engine.counters.get("drop", "not_negotiated") == 2
    assert right.events == []


def test_without_the_profile_it_is_not_offered() -> None:
    net = FakeNet()
    plain = net.create("plain", table=TABLE, profile=False)
    assert not plain.engine.registry.is_handled(ECHO)
    assert "subprotocol:0x7ec0" not in plain.engine.announcer.capabilities.tags


def test_hostile_bytes_are_counted() -> None:
    net, left, right = two()
    with left.turn() as (engine, _now, out):
        for message in (b"", b"\x02", b"\x00\xff"):
            engine.peers.require(right.node_id).send_message(ECHO, message, out)
    net.run(for_s=0.1)
    assert right.engine.counters.get("drop", "echo_malformed") == 3
    assert right.engine.services[Echoes].asked == []


def test_on_reliable_streams_a_lossy_path_loses_nothing() -> None:
    net, left, right = two()
    net.path = FakePath(loss=0.3, duplication=0.1, reordering=0.2, jitter_s=0.004)
    texts = [f"number {number}" for number in range(300)]
    for start in range(0, len(texts), 50):
        ask(left, right, *texts[start : start + 50], kind=SureEchoes)
        net.run(for_s=0.05)
    here, there = left.engine.services[SureEchoes], right.engine.services[SureEchoes]
    net.run_until(lambda: len(here.answers) == len(texts), timeout_s=600)
    net.run(for_s=5)  # nothing comes twice
    assert there.asked == [(left.node_id, text) for text in texts]
    assert here.answers == [(right.node_id, text) for text in texts]
    assert left.engine.counters.total("retransmit") > 0


def test_the_reliable_one_is_left_out_where_reliable_streams_are() -> None:
    net = FakeNet()
    nodes = net.create("left", table=TABLE), net.create("right", table=TABLE, announces=False)
    right = nodes[1]
    right.engine.registry.unregister(Subprotocol.RELIABLE)
    with right.turn() as (engine, now, out):
        engine.announce(engine.announcer.capabilities, now, out)
    nodes[0].connect(right)
    peers = nodes[0].engine.peers
    net.run_until(lambda: (peer := peers.get(right.node_id)) is not None and peer.uses(ECHO))
    assert SURE_ECHO not in peers.require(right.node_id).negotiated
