"""The newcomer: joins, waits, comes again after a loss, and says clearly why it was not admitted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from meshbus.config.spelling import Endpoint, parse_endpoint
from meshbus.errors import ConfigError, HandshakeError, HandshakeFault, JoinError, Timeout
from meshbus.keyfile import create_identity, load_identity
from meshbus.node.invites import newcomer as subject
from meshbus.node.invites.joinlistener import JoinListener, unsealed
from meshbus.node.invites.newcomer import join
from meshbus.node.invites.settling import identity_of
from meshbus.policy.reason import Reason
from meshbus.wire.joining import LENGTH_BYTES
from tests.node.invites.making import INVITER, MESH_KEY, Inviter

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(inviter: Inviter) -> AsyncIterator[str]:
    listener = JoinListener(Endpoint("127.0.0.1", 0), inviter.inviting, inviter.counters)
    await listener.keep()
    assert listener.address is not None
    try:
        yield listener.address
    finally:
        await listener.close()


@asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[str]:
    """Serve something else than an inviting node."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talk(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, seen: bytearray) -> None:
    """Pass a connection on, and keep what is sent."""
    target = parse_endpoint(address)
    there, onward = await asyncio.open_connection(target.host, target.port)

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1000):
            seen.extend(data)
            sink.write(data)
        sink.close()

    async with asyncio.TaskGroup() as both:
        both.create_task(copy(reader, onward))
        both.create_task(copy(there, writer))


async def test_a_newcomer_joins(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    place = tmp_path / "robot" / "node.toml"
    async with served(inviter) as address:
        joined = await join(token.text(), address, place)
    assert place.exists()
    assert joined.inviter == INVITER.entity_id
    assert load_identity(identity_of(place)).entity_id == joined.public_key
    (info,) = inviter.inviting.infos()
    assert info.public_key == joined.public_key.hex()


async def test_after_a_lost_answer_the_same_command_works_and_nothing_else(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    place = tmp_path / "node.toml"
    robot = create_identity(identity_of(place))
    await inviter.ask(token, robot)  # the answer never arrives
    async with served(inviter) as address:
        with pytest.raises(JoinError, match="Another node has used this invite first") as caught:
            await join(token.text(), address, tmp_path / "else" / "node.toml")
        assert caught.value.reason == "join_other_key"
        joined = await join(token.text(), address, place)
        assert joined.public_key == robot.entity_id
        with pytest.raises(ConfigError, match="exists, and is never overwritten"):
            await join(token.text(), address, place)


async def test_it_waits_for_approval_also_while_the_other_side_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "ASK_S", 0.01)
    inviter = Inviter(tmp_path)
    token = await inviter.invite(approval=True)
    asked: list[str] = []
    turns = 0

    async with served(inviter) as address:

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Pass on, but for the second try, which ends without an answer."""
            nonlocal turns
            turns += 1
            if turns == 2:
                await inviter.inviting.approve(bytes.fromhex(asked[0]), "ada")
            else:
                await relayed(reader, writer, address, bytearray())

        async with talking(between) as front:
            joined = await join(token.text(), front, tmp_path / "node.toml", on_waiting=asked.append)
    assert turns == 3
    assert asked == [token.invite_id.hex()]
    assert joined.certificate.name == "rover-7"


async def test_it_waits_only_so_long(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite(approval=True)
    async with served(inviter) as address:
        with pytest.raises(Timeout, match=r"approval of this node by an operator: no answer within 0\.5 s"):
            await join(token.text(), address, tmp_path / "node.toml", wait_s=0.5)


async def test_nobody_there(tmp_path: Path) -> None:
    async with talking(_say(b"")) as address:
        pass
    token = await Inviter(tmp_path).invite()
    with pytest.raises(HandshakeError, match="cannot connect to") as caught:
        await join(token.text(), address, tmp_path / "node.toml")
    assert caught.value.fault is HandshakeFault.TIMEOUT


def _say(answer: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()

    return talk


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"\x40\x00" + b"x" * 64, HandshakeFault.WRONG_KEY),
        (b"\x01\x00x", HandshakeFault.WRONG_KEY),
        (b"\xff\xff" + b"x" * 64, HandshakeFault.TIMEOUT),
        (b"\x40\x00short", HandshakeFault.TIMEOUT),
    ],
)
async def test_somebody_else_there(tmp_path: Path, answer: bytes, fault: HandshakeFault) -> None:
    token = await Inviter(tmp_path).invite()
    async with talking(_say(answer)) as address:
        with pytest.raises(HandshakeError) as caught:
            await join(token.text(), address, tmp_path / "node.toml")
    assert caught.value.fault is fault
    assert not (tmp_path / "node.toml").exists()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (unsealed(Reason.REFUSE_JOIN_UNKNOWN), "join_unknown"),
        (unsealed(Reason.REFUSE_JOIN_BUSY), "join_busy"),
        (unsealed(Reason.REFUSE_JOIN_THROTTLED), "join_throttled"),
        (bytes(LENGTH_BYTES) + b"\x03\xff\xffx", "join_unknown"),
    ],
)
async def test_hints_without_a_seal(tmp_path: Path, answer: bytes, reason: str) -> None:
    token = await Inviter(tmp_path).invite()
    async with talking(_say(answer)) as address:
        with pytest.raises(JoinError, match="not admitted by") as caught:
            await join(token.text(), address, tmp_path / "node.toml")
    assert caught.value.reason == reason


async def test_a_node_in_the_middle_passes_on_and_learns_nothing(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    seen = bytearray()
    async with served(inviter) as address:

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await relayed(reader, writer, address, seen)

        async with talking(between) as front:
            await join(token.text(), front, tmp_path / "node.toml")
    assert len(seen) > 500
    for secret in (MESH_KEY, token.secret, token.psk):
        assert secret not in seen
        assert secret.hex().encode() not in seen


@pytest.mark.parametrize(("token", "address"), [("mbj1_x", "a:1"), (None, "nowhere")])
async def test_wrong_arguments(tmp_path: Path, token: str | None, address: str) -> None:
    text = (await Inviter(tmp_path).invite()).text() if token is None else token
    with pytest.raises(ConfigError):
        await join(text, address, tmp_path / "node.toml")
    assert not identity_of(tmp_path / "node.toml").exists()
