"""Visitors come to a node, and leave with what they counted; one that is not installed stays away."""

import asyncio
from pathlib import Path

import pytest

from meshbus.demo.fleet import Member
from meshbus.demo.roles import CONTROL, write_files
from meshbus.demo.visitors import PER_S, Visit, Visitors
from tests.patience import PATIENCE_S


@pytest.mark.slow
async def test_visitors_publish_receive_and_say_what_they_did(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    member = Member(CONTROL, files.config(CONTROL))
    async with asyncio.timeout(PATIENCE_S), member.process:
        await member.up()
        assert set(member.up_as.edge) == {"publishers", "subscribers"}
        async with Visitors(tmp_path, member, files.identities[CONTROL].node_id) as visitors:
            assert visitors.absent() == []
            await visitors.come(member.up_as.edge)
            await visitors.act(0.5)
            events = round(PER_S * 0.5)
            # What they count is told a moment later.
            while member.counts.arrived < events or member.counts.edge["publish"].get("sent", 0) < events:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            visit = await visitors.leave()
        await member.process.leave()
    assert (visit.states, visit.orders, visit.forbidden, visit.shown) == (events, events, 3, 0)
    assert visit.legacy_id is not None
    assert visit.orders_at_legacy == events
    counts = member.counts
    assert counts.received == {f"{visit.legacy_id:016x}": {"legacy/state": events}}
    assert counts.edge["publish"] == {"sent": events}
    assert counts.edge["refuse_publish"] == {"not_exposed": 3}


async def test_what_is_not_installed_takes_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.demo.visitors.find_spec", lambda _: None)
    files = write_files(tmp_path)
    async with Visitors(tmp_path, Member(CONTROL, files.config(CONTROL)), 1) as visitors:
        assert visitors.absent() == ["net-mesh", "pyzmq"]
        await visitors.come({})
        await visitors.act(1.0)
        assert await visitors.leave() == Visit()
