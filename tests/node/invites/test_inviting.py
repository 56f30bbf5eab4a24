"""Inviting: who is admitted, what is written down about it, and what survives a restart."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from meshbus.errors import ConfigError, MalformedPacket
from meshbus.names.subnet import SubnetId
from meshbus.node.audit import AuditLog
from meshbus.node.invites import inviting as subject
from meshbus.node.invites.invitefile import save_invites
from meshbus.node.peers.noticelog import JoinRefused, JoinWaiting, NodeJoined
from meshbus.policy.invites import Invite
from meshbus.policy.reason import Reason
from meshbus.wire.certificate import MAX_TAGS, decode_certificate
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import Granted, Newcomer, Refused, Waiting
from tests.node.invites.making import EVE, INVITER, ISSUER, MESH_KEY, ROBOT, Inviter


async def test_a_newcomer_gets_what_the_invite_says_and_it_is_recorded(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite(tags=("lidar",), subnet=SubnetId.parse("3.7"))
    answer = await inviter.join(token)
    assert isinstance(answer, Granted)
    assert answer.psk == MESH_KEY
    certificate = decode_certificate(answer.certificate)
    assert (certificate.subject, certificate.name, certificate.tags) == (ROBOT.entity_id, "rover-7", ("lidar",))
    assert [(row.kind, row.by, row.via, row.result, row.subject) for row in inviter.rows()] == [
        ("join", "ada", "invite", "applied", None),
        ("join", f"node {ROBOT.node_id:016x}", "join", "applied", ROBOT.entity_id.hex()),
    ]
    assert "joined as rover-7 (subnet 3.7, tags lidar, invite" in inviter.rows()[1].changes[0]
    assert inviter.notices == [NodeJoined("rover-7", ROBOT.entity_id, token.invite_id.hex())]
    (info,) = inviter.inviting.infos()
    assert (info.state, info.public_key) == ("used", ROBOT.entity_id.hex())
    assert inviter.inviting.last_end() is None


async def test_used_twice(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    await inviter.join(token)
    again = await inviter.ask(token)
    assert again == Refused("join_used", Reason.REFUSE_JOIN_USED.sentence)
    assert inviter.counted(Reason.REFUSE_JOIN_USED) == 1
    last = inviter.rows()[-1]
    assert (last.result, last.problem) == ("refused", Reason.REFUSE_JOIN_USED.sentence)
    assert inviter.notices[-1] == JoinRefused(
        "rover-7", ROBOT.entity_id, token.invite_id.hex(), "join_used", Reason.REFUSE_JOIN_USED.sentence
    )


async def test_by_another_key(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    first = await inviter.ask(token)  # the answer is lost, so it does not confirm
    assert isinstance(first, Granted)
    assert await inviter.ask(token, EVE) == Refused("join_other_key", Reason.REFUSE_JOIN_OTHER_KEY.sentence)
    assert inviter.counted(Reason.REFUSE_JOIN_OTHER_KEY) == 1
    assert inviter.rows()[-1].subject == EVE.entity_id.hex()
    assert isinstance(await inviter.join(token), Granted)
    assert len([row for row in inviter.rows() if row.result == "applied"]) == 2  # asked again, recorded once


async def test_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite(ttl_s=60)
    end = inviter.inviting.last_end()
    assert end is not None
    monkeypatch.setattr(subject, "unix_now", lambda: float(end))
    assert await inviter.ask(token) == Refused("join_expired", Reason.REFUSE_JOIN_EXPIRED.sentence)
    assert inviter.inviting.infos()[0].state == "expired"
    assert inviter.inviting.last_end() is None


async def test_withdrawn(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    info = await inviter.inviting.withdraw(token.invite_id, "ada")
    assert info.state == "withdrawn"
    assert await inviter.ask(token) == Refused("join_withdrawn", Reason.REFUSE_JOIN_WITHDRAWN.sentence)
    with pytest.raises(ConfigError, match="is withdrawn already"):
        await inviter.inviting.withdraw(token.invite_id, "ada")
    with pytest.raises(ConfigError, match="unknown invite 00"):
        await inviter.inviting.withdraw(bytes(8), "ada")


async def test_of_another_issuer(tmp_path: Path) -> None:
    token = await Inviter(tmp_path).invite()
    later = Inviter(tmp_path, issuer=EVE)  # the key of the issuer was replaced
    assert await later.ask(token) == Refused("join_issuer", Reason.REFUSE_JOIN_ISSUER.sentence)
    assert later.counted(Reason.REFUSE_JOIN_ISSUER) == 1


async def test_by_a_node_that_was_revoked(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    inviter.revoked.add(EVE.node_id)
    assert await inviter.ask(token, EVE) == Refused("revoked", Reason.REFUSE_REVOKED.sentence)
    assert inviter.rows()[-1].subject == EVE.entity_id.hex()
    # It has not bound the invite to itself.
    assert isinstance(await inviter.join(token), Granted)


async def test_approval_is_asked_for_and_given(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite(approval=True)
    for _ in range(2):
        assert await inviter.ask(token) == Waiting(token.invite_id.hex())
    assert inviter.notices == [JoinWaiting("rover-7", ROBOT.entity_id, token.invite_id.hex())]
    assert isinstance(await inviter.ask(token, EVE), Refused)
    info = await inviter.inviting.approve(token.invite_id, "grace")
    assert (info.state, info.public_key) == ("approved", ROBOT.entity_id.hex())
    assert isinstance(await inviter.ask(token, EVE), Refused)
    assert isinstance(await inviter.join(token), Granted)
    assert [(row.via, row.by) for row in inviter.rows() if row.result == "applied"] == [
        ("invite", "ada"),
        ("join", f"node {ROBOT.node_id:016x}"),
        ("approve", "grace"),
        ("join", f"node {ROBOT.node_id:016x}"),
    ]


async def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    first = Inviter(tmp_path)
    opened, used, waiting = [await first.invite(name=name, approval=name == "c") for name in "abc"]
    await first.join(used)
    await first.ask(waiting)
    second = Inviter(tmp_path)
    assert [info.state for info in second.inviting.infos()] == ["open", "used", "waiting"]
    assert second.inviting.last_end() == first.inviting.last_end()
    assert isinstance(await second.ask(used), Refused)
    assert isinstance(await second.ask(waiting, EVE), Refused)
    assert isinstance(await second.join(opened), Granted)


async def test_the_secret_of_a_token_is_kept_nowhere(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    await inviter.join(token)
    written = b"".join((tmp_path / name).read_bytes() for name in ("id.invites.toml", "id.audit"))
    assert token.secret not in written
    assert token.secret.hex().encode() not in written
    assert token.text().encode() not in written


async def test_strangers_leave_counters_and_no_rows(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    forged = InviteToken(token.invite_id, b"x" * 16, token.inviter, token.issuer)
    unknown = InviteToken.new(INVITER.entity_id, ISSUER.entity_id, os.urandom)
    hellos = {
        Reason.REFUSE_JOIN_PROOF: Newcomer(forged, ROBOT, os.urandom(32)).hello,
        Reason.REFUSE_JOIN_UNKNOWN: Newcomer(unknown, ROBOT, os.urandom(32)).hello,
    }
    for reason, hello in hellos.items():
        assert await inviter.inviting.receive(hello) is reason
        assert inviter.counted(reason) == 1
    with pytest.raises(MalformedPacket):
        await inviter.inviting.receive(b"GET / HTTP/1.1\r\n")
    assert len(inviter.rows()) == 1
    assert inviter.notices == []


async def test_a_recorded_hello_sent_again_gets_nothing_new(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    newcomer, exchange = await inviter.hear(token)
    replayed = await inviter.inviting.receive(newcomer.hello)
    assert not isinstance(replayed, Reason)
    # It is sealed for the ephemeral key of the newcomer again, and only the newcomer can confirm it.
    await inviter.inviting.confirm(replayed, EVE.sign(b"done"))
    assert inviter.counted(Reason.REFUSE_JOIN_PROOF) == 1
    newcomer.take(exchange.sealed)
    await inviter.inviting.confirm(exchange, newcomer.done())
    assert inviter.inviting.infos()[0].state == "used"
    assert len(inviter.rows()) == 2


async def test_refusals_of_one_invite_fill_no_log(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    await inviter.join(token)
    for _ in range(subject.MOST_REFUSALS + 5):
        await inviter.ask(token, EVE)
    assert len([row for row in inviter.rows() if row.result == "refused"]) == subject.MOST_REFUSALS
    assert inviter.counted(Reason.REFUSE_JOIN_OTHER_KEY) == subject.MOST_REFUSALS + 5
    await inviter.inviting.withdraw((await inviter.invite()).invite_id, "ada")


async def test_nobody_is_admitted_without_a_row(tmp_path: Path) -> None:
    inviter = Inviter(tmp_path, audit_log=tmp_path / "audit" / "log")
    (tmp_path / "audit").mkdir()
    token = await inviter.invite()
    (tmp_path / "audit").rename(tmp_path / "gone")
    assert await inviter.ask(token) == Refused("join_storage", Reason.REFUSE_JOIN_STORAGE.sentence)
    assert inviter.counted(Reason.REFUSE_JOIN_STORAGE) == 1
    with pytest.raises(ConfigError, match="a change without a row is refused"):
        await inviter.invite()
    (tmp_path / "gone").rename(tmp_path / "audit")
    assert inviter.inviting.infos()[0].state == "open"
    assert isinstance(await inviter.join(token), Granted)


async def test_a_disk_that_fails_later_leaves_the_invite_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    newcomer, exchange = await inviter.hear(token)
    newcomer.take(exchange.sealed)

    def full(*_: object) -> None:
        raise ConfigError("invites", "cannot be written: No space left on device")

    monkeypatch.setattr(subject, "save_invites", full)
    await inviter.inviting.confirm(exchange, newcomer.done())
    assert "a used invite is not stored" in caplog.text
    assert inviter.inviting.infos()[0].state == "granted"
    monkeypatch.setattr(AuditLog, "append", full)
    assert isinstance(await inviter.ask(token, EVE), Refused)
    assert "a refused newcomer is not in the audit log" in caplog.text


async def test_a_row_that_came_to_nothing_is_followed_by_its_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()

    def full(*_: object) -> None:
        raise ConfigError("invites", "cannot be written: No space left on device")

    monkeypatch.setattr(subject, "save_invites", full)
    assert await inviter.ask(token) == Refused("join_storage", Reason.REFUSE_JOIN_STORAGE.sentence)
    assert [row.result for row in inviter.rows()] == ["applied", "applied", "refused"]
    assert inviter.inviting.infos()[0].state == "open"
    monkeypatch.setattr(subject, "save_invites", save_invites)
    assert isinstance(await inviter.join(token), Granted)


async def test_a_caller_that_goes_away_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inviter = Inviter(tmp_path)
    token = await inviter.invite()
    saving, saved = threading.Event(), threading.Event()

    def slow(path: Path, invites: list[Invite]) -> None:
        saving.set()
        saved.wait()
        save_invites(path, invites)

    monkeypatch.setattr(subject, "save_invites", slow)
    asking = asyncio.ensure_future(inviter.ask(token))
    await asyncio.to_thread(saving.wait)
    asking.cancel()
    saved.set()
    await asyncio.gather(asking, return_exceptions=True)
    # The invite is bound to the first key all the same, in memory as on disk.
    assert isinstance(await inviter.ask(token, EVE), Refused)
    assert isinstance(await Inviter(tmp_path).ask(token, EVE), Refused)
    await inviter.inviting.close()


@pytest.mark.parametrize("tags", [("",), ("x" * 256,), tuple(f"tag{number}" for number in range(MAX_TAGS + 1))])
async def test_tags_that_cannot_be_certified_are_refused(tmp_path: Path, tags: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="tags"):
        await Inviter(tmp_path).invite(tags=tags)


def test_an_ephemeral_node_cannot_invite(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not allowed for an ephemeral node"):
        Inviter(tmp_path, ephemeral=True)
