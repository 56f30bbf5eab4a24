"""A member's appends: taken together, held back, and resolved whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meshbus.engine.replicas.leading import Leading
from meshbus.engine.replicas.records import Acks, Refusal
from meshbus.node.replicas import replicamember
from meshbus.node.replicas.replicamember import ReplicaMember, Uncommitted
from meshbus.wire.messages.append import Appended, Outcome
from meshbus.wire.record import Record, pack_record
from tests.node.replicas.replicatrio import replica_trio, until
from tests.patience import PATIENCE_S

RECORD = pack_record(Record(b"x", 1, 1))


async def test_appends_of_one_moment_become_one_and_each_gets_its_place(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        member = trio.member(await trio.led())
        number = member.core.seat.journal.number
        kinds = [Acks.MAJORITY, Acks.LOCAL] * 5
        answers = await asyncio.gather(*(member.append([RECORD] * 2, acks) for acks in kinds))
        assert {answer.outcome for answer in answers} == {Outcome.OK}
        assert sorted(answer.first_seq for answer in answers) == list(range(0, 20, 2))
        # One write for each kind of acknowledgement.
        assert member.core.seat.journal.number == number + 2


async def test_a_follower_refuses_and_names_the_leader(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader = await trio.led()
        answer = await trio.member(trio.follower()).append([RECORD], Acks.MAJORITY)
        assert (answer.outcome, answer.leader) == (Outcome.NOT_LEADER, trio.nodes[leader].node_id)
        answer = await trio.member(trio.follower()).append([RECORD], Acks.MAJORITY, once=True)
        assert answer.outcome is Outcome.NOT_LEADER
        assert await trio.member(trio.follower()).change("remove", 1) is Refusal.NOT_LEADER


async def test_what_does_not_fit_waits_and_what_is_closed_is_unresolved(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        member = trio.member(await trio.led())
        lead = member.core.lead
        assert lead is not None
        lead._appends._max_events = 3
        first = asyncio.ensure_future(member.append([RECORD] * 3, Acks.MAJORITY))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.ensure_future(member.append([RECORD], Acks.MAJORITY))
        assert (await first).first_seq == 0
        assert (await second).first_seq == 3
        member.disk.on_durable = lambda _number: None
        third = asyncio.ensure_future(member.append([RECORD], Acks.LOCAL))
        await asyncio.sleep(0.01)
        member.close()
        assert (await third).outcome is Outcome.UNRESOLVED


async def test_more_than_may_wait_for_the_leader_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicamember, "MAX_LINE_BYTES", 2 * len(RECORD))
    async with replica_trio(tmp_path) as trio:
        member = trio.member(await trio.led())
        answers = await asyncio.gather(*(member.append([RECORD], Acks.LOCAL) for _ in range(5)))
        assert [answer.outcome for answer in answers] == [Outcome.OK] * 2 + [Outcome.BACKPRESSURE] * 3


def test_records_that_a_majority_does_not_have_are_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicamember, "MAX_UNCOMMITTED_BYTES", 100)
    forgotten: list[int] = []
    kept = Uncommitted(forgotten.append)

    def taken(tail: int) -> tuple[int, list[bytes]]:
        first, records = kept.take(tail)
        return first, list(records)

    for first in range(0, 20, 2):
        kept.add(first, [b"%020d" % first, b"%020d" % (first + 1)])
    assert forgotten == [2] * 8
    assert taken(17) == (16, [b"%020d" % 16])
    assert taken(17) == (17, [])
    kept.cut(19)
    assert taken(30) == (17, [b"%020d" % number for number in (17, 18)])
    kept.add(40, [bytes(200)])
    assert taken(41) == (40, [bytes(200)]), "the last one stays, however large"
    kept.add(50, [b"x"])
    kept.cut(0)
    assert taken(60) == (60, [])
    assert forgotten == [2] * 8


async def test_what_waits_for_a_follower_goes_on_when_it_has_caught_up(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio, asyncio.timeout(PATIENCE_S):
        name = await trio.led()
        member = trio.member(name)
        waiting = await paced(member)
        waiting.append(asyncio.ensure_future(member.append([RECORD] * 2, Acks.MAJORITY)))
        await asyncio.sleep(0)
        assert trio.nodes[name].counters["replica"]["paced"] == 1, "not tried again for each append"
        del member.core.lead._is_paced  # type: ignore[union-attr]
        answers = await asyncio.gather(*waiting)
        assert {answer.outcome for answer in answers} == {Outcome.OK}
        assert sorted(answer.first_seq for answer in answers) == [0, 1]


async def test_what_waits_for_a_follower_is_refused_when_another_leads(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio, asyncio.timeout(PATIENCE_S):
        member = trio.member(await trio.led())
        [waiting] = await paced(member)
        member.hand_over(trio.nodes[trio.follower()].node_id)
        assert (await waiting).outcome is Outcome.NOT_LEADER


async def test_a_change_ends_when_another_leads(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio, asyncio.timeout(PATIENCE_S):
        member = trio.member(await trio.led())
        heir = trio.nodes[trio.follower()].node_id
        lead = member.core.lead
        assert isinstance(lead, Leading)
        await until(lambda: lead.config_stored)  # the config of this leader also ends changes
        lead.change = lambda token, members, now, out: None  # type: ignore[method-assign] # noqa: ARG005 - never stored
        change = asyncio.ensure_future(member.change("remove", heir))
        await asyncio.sleep(0)
        assert not change.done()
        member.hand_over(heir)
        assert await change is Refusal.NOT_LEADER


async def paced(member: ReplicaMember) -> list[asyncio.Future[Appended]]:
    """Let a leader wait for a follower, as if it lacked too much, and append one record."""
    lead = member.core.lead
    assert isinstance(lead, Leading)
    lead._is_paced = lambda now, out: True  # type: ignore[method-assign] # noqa: ARG005
    waiting = asyncio.ensure_future(member.append([RECORD], Acks.MAJORITY))
    await until(lambda: member._paced)
    return [waiting]
