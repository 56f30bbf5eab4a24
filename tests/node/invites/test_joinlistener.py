"""The listener for newcomers: open while an invite is, bounded for strangers, silent for those who were refused too often."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from meshbus.config.spelling import Endpoint, parse_endpoint
from meshbus.errors import ConfigError
from meshbus.node.invites import joinlistener as subject
from meshbus.node.invites.joinlistener import MAX_OF_HOST, JoinListener, unsealed
from meshbus.policy.reason import Reason
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import HELLO_BYTES, LENGTH_BYTES, Granted, Newcomer
from tests.node.invites.making import EVE, INVITER, ISSUER, ROBOT, Inviter
from tests.patience import PATIENCE_S

ANY = Endpoint("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be as slow as it likes: time is up only where a test says so."""
    monkeypatch.setattr(subject, "HELLO_S", PATIENCE_S)
    monkeypatch.setattr(subject, "DONE_S", PATIENCE_S)


@asynccontextmanager
async def listening(inviter: Inviter) -> AsyncIterator[JoinListener]:
    listener = JoinListener(ANY, inviter.inviting, inviter.counters)
    await listener.keep()
    try:
        yield listener
    finally:
        await listener.close()


async def connected(listener: JoinListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert listener.address is not None
    host, port = parse_endpoint(listener.address)
    return await asyncio.open_connection(host, port)


async def said(listener: JoinListener, hello: bytes) -> bytes:
    """Send something, and return everything that comes back until the connection ends."""
    reader, writer = await connected(listener)
    try:
        writer.write(hello)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def until_counted(inviter: Inviter, reason: Reason, count: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while inviter.counted(reason) < count:  # noqa: ASYNC110 - another task counts
            await asyncio.sleep(0.01)


async def test_a_newcomer_is_served(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    async with listening(inviter) as listener:
        robot = Newcomer(token, ROBOT, os.urandom(32))
        reader, writer = await connected(listener)
        writer.write(robot.hello)
        async with asyncio.timeout(PATIENCE_S):
            length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
            assert isinstance(robot.take(await reader.readexactly(length)), Granted)
            writer.write(robot.done())
            assert await reader.read() == b""
        writer.close()
        assert inviter.inviting.infos()[0].state == "used"


async def test_a_newcomer_that_goes_without_confirming_can_come_again(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    async with listening(inviter) as listener:
        reader, writer = await connected(listener)
        writer.write(Newcomer(token, ROBOT, os.urandom(32)).hello)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readexactly(LENGTH_BYTES)
        writer.close()
        assert isinstance(await inviter.join(token), Granted)
    assert inviter.counters.total("refuse") == inviter.counters.total("drop") == 0


async def test_it_listens_only_while_an_invite_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LOOK_S", 0.01)
    inviter = Inviter(tmp_path)
    async with listening(inviter) as listener:
        assert [listener.address] == [None]
        token = await inviter.invite()
        await listener.keep()
        assert [listener.address] != [None]
        await listener.keep()
        await inviter.inviting.withdraw(token.invite_id, "ada")
        async with asyncio.timeout(PATIENCE_S):
            while listener.address is not None:  # noqa: ASYNC110 - its own task looks
                await asyncio.sleep(0.01)
        token = await inviter.invite()
        await listener.keep()
        assert await said(listener, b"x" * HELLO_BYTES) == b""


async def test_an_address_that_is_taken_is_an_error(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    await inviter.invite()
    async with listening(inviter) as first:
        assert first.address is not None
        second = JoinListener(parse_endpoint(first.address), inviter.inviting, inviter.counters)
        with pytest.raises(ConfigError, match="join_bind: cannot listen for newcomers"):
            await second.open()


async def test_strangers_get_a_word_and_nothing_else(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    unknown = InviteToken.new(INVITER.entity_id, ISSUER.entity_id, os.urandom)
    forged = InviteToken(token.invite_id, b"x" * 16, token.inviter, token.issuer)
    async with listening(inviter) as listener:
        for wrong, reason in ((unknown, Reason.REFUSE_JOIN_UNKNOWN), (forged, Reason.REFUSE_JOIN_PROOF)):
            assert await said(listener, Newcomer(wrong, EVE, os.urandom(32)).hello) == unsealed(reason)
        assert await said(listener, b"x" * HELLO_BYTES) == b""
    assert inviter.counted(Reason.JOIN_MALFORMED) == 1


async def test_a_host_that_was_refused_too_often_is_not_answered(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    await inviter.invite()
    unknown = InviteToken.new(INVITER.entity_id, ISSUER.entity_id, os.urandom)
    async with listening(inviter) as listener:
        for _ in range(subject.TOLERATED_REFUSALS):
            await said(listener, Newcomer(unknown, EVE, os.urandom(32)).hello)
        await said(listener, Newcomer(unknown, EVE, os.urandom(32)).hello)
        assert inviter.counted(Reason.REFUSE_JOIN_THROTTLED) == 1
        assert inviter.counted(Reason.REFUSE_JOIN_UNKNOWN) == subject.TOLERATED_REFUSALS


async def test_a_host_has_so_many_connections_and_silent_ones_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    async with listening(inviter) as listener:
        silent = [await connected(listener) for _ in range(MAX_OF_HOST)]
        await said(listener, Newcomer(token, ROBOT, os.urandom(32)).hello)
        await until_counted(inviter, Reason.REFUSE_JOIN_BUSY)
        for _, writer in silent:
            writer.close()
        await until_counted(inviter, Reason.JOIN_MALFORMED, MAX_OF_HOST)
        monkeypatch.setattr(subject, "HELLO_S", 0.05)
        assert await said(listener, b"half a hello") == b""
        assert inviter.counted(Reason.JOIN_TIMEOUT) == 1


async def test_all_hosts_together_have_so_many_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_CONNECTIONS", 2)
    inviter = Inviter(tmp_path)
    await inviter.invite()
    async with listening(inviter) as listener:
        # Those who only connect make room, the oldest first, and a newcomer is served.
        silent = [await connected(listener) for _ in range(3)]
        async with asyncio.timeout(PATIENCE_S):
            assert await silent[0][0].read() == b""
        assert inviter.counted(Reason.REFUSE_JOIN_BUSY) == 1
        assert len(listener._served) == 2
        token = await inviter.invite()
        robots = [Newcomer(token, ROBOT, os.urandom(32)) for _ in range(2)]
        for robot in robots:
            reader, writer = await connected(listener)
            writer.write(robot.hello)
            async with asyncio.timeout(PATIENCE_S):
                await reader.readexactly(LENGTH_BYTES)
            silent.append((reader, writer))
        # Those who have the token stay until their time is up; one more is refused.
        assert await said(listener, b"") == unsealed(Reason.REFUSE_JOIN_BUSY)
        assert len(listener._served) == 2
        for _, writer in silent:
            writer.close()


async def test_hosts_that_were_refused_are_remembered_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_HOSTS", 3)
    inviter = Inviter(tmp_path)
    listener = JoinListener(ANY, inviter.inviting, inviter.counters)
    for number in range(10):
        listener._throttle.fail(f"10.0.0.{number}", 1.0)
    assert len(listener._throttle) == 3
    assert inviter.counters.get("forget", "join_hosts") == 7


async def test_closing_ends_connections(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    await inviter.invite()
    async with listening(inviter) as listener:
        reader, writer = await connected(listener)
        async with asyncio.timeout(PATIENCE_S):
            while not listener._served:  # noqa: ASYNC110 - the connection arrives a moment later
                await asyncio.sleep(0.01)
            await listener.close()
            assert await reader.read() == b""
        writer.close()
        await listener.close()
