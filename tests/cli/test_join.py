"""`meshbus join` alone: what it does before and without an inviting node. tests/cli/test_invite.py joins for real."""

import asyncio
import threading
from pathlib import Path

from meshbus.cli.exit import Exit
from meshbus.config.spelling import Endpoint
from meshbus.keyfile import load_identity
from meshbus.node.invites.joinlistener import JoinListener
from tests.cli.conftest import Meshbus
from tests.node.invites.making import Inviter


def test_wrong_arguments(meshbus: Meshbus, home: Path) -> None:
    result = meshbus("join", "mbj1_abc", "10.0.0.7:9000")
    assert (result.code, "token: is not a token of an invite" in result.err) == (Exit.USAGE, True)
    token = asyncio.run(Inviter(home).invite()).text()
    result = meshbus("join", token, "10.0.0.7")
    assert (result.code, "invalid address '10.0.0.7'" in result.err) == (Exit.USAGE, True)
    result = meshbus("join", token, "10.0.0.7:1", "--wait", "long")
    assert (result.code, "--wait: expected a number" in result.err) == (Exit.USAGE, True)
    (home / "node.toml").touch()
    result = meshbus("join", token, "10.0.0.7:1")
    assert (result.code, "exists, and is never overwritten" in result.err) == (Exit.USAGE, True)


def test_waiting_for_approval_shows_the_key_to_compare(meshbus: Meshbus, home: Path) -> None:
    """The inviting side is in a thread of its own, because the command has a loop of its own."""
    (home / "hub").mkdir()
    ready, done = threading.Event(), threading.Event()
    told: dict[str, str] = {}

    async def serve() -> None:
        inviter = Inviter(home / "hub")
        token = await inviter.invite(approval=True)
        listener = JoinListener(Endpoint("127.0.0.1", 0), inviter.inviting, inviter.counters)
        await listener.keep()
        assert listener.address is not None
        told.update(token=token.text(), address=listener.address, invite=token.invite_id.hex())
        ready.set()
        await asyncio.to_thread(done.wait)
        await listener.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        result = meshbus("join", told["token"], told["address"], "--wait", "1s")
    finally:
        done.set()
        thread.join()
    assert result.code == Exit.UNREACHABLE
    key = load_identity(home / "node.identity.toml").entity_id.hex()
    assert f"run `meshbus invite approve {told['invite']}` at the inviting node if it shows the key {key}" in result.err
    assert "approval of this node by an operator: no answer within 1 s" in result.err
