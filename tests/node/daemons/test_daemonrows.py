"""Daemons as rows: everything that is known, ids as text, and lines that are told once each."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from meshbus.config.node import NodeConfig
from meshbus.errors import ChannelError, ConfigError
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonInput, DaemonLine, DaemonMove, DaemonState
from meshbus.node.daemons.daemonrows import DaemonWish, daemon_row, line_row, lines_of, move_row, start_wish
from meshbus.node.daemons.daemons import Daemons
from meshbus.node.node import Node
from tests.patience import PATIENCE_S


def who(node_id: int) -> dict[str, object]:
    return {"node_id": f"{node_id:016x}", "name": None}


def test_a_row_has_all_that_is_known() -> None:
    info = DaemonInfo(
        origin=255,
        name="counter",
        state=DaemonState.MOVING,
        node=7,
        phase="snapshot",
        inputs=(DaemonInput("numbers", 7, 3), DaemonInput("shared", None, 0)),
        output="counts",
        outputs=3,
        processed=2,
        moves=1,
        errors=4,
        error="why",
    )
    row = daemon_row(info, who)
    assert (row["origin"], row["where"], row["state"]) == ("00000000000000ff", who(7), "moving")
    assert row["inputs"] == [
        {"channel": "numbers", "publisher": who(7), "next_seq": 3},
        {"channel": "shared", "publisher": None, "next_seq": 0},
    ]
    same = ("name", "phase", "output", "outputs", "processed", "moves", "errors", "error")
    assert [row[name] for name in same] == [getattr(info, name) for name in same]
    assert daemon_row(DaemonInfo(origin=1, name=None, state=DaemonState.STOPPED, node=None), who)["where"] is None


def test_a_move_and_a_line_are_rows() -> None:
    assert move_row(DaemonMove(255, 1, 2, 0.12345), who) == {
        "origin": "00000000000000ff",
        "source": who(1),
        "target": who(2),
        "seconds": 0.123,
    }
    assert line_row(DaemonLine(1_500_000_000, "info", "runs here")) == {
        "at": "1970-01-01T00:00:01.500000+00:00",
        "level": "info",
        "text": "runs here",
    }


class _Told:
    """Stands in for the daemons of a node, of which only the lines are asked."""

    def __init__(self) -> None:
        self.lines: list[DaemonLine] = []

    def logs(self, _daemon: str | int) -> list[DaemonLine]:
        return list(self.lines)


async def test_lines_are_told_once_each_also_when_old_ones_go() -> None:
    told = _Told()
    told.lines = [DaemonLine(1, "info", "same"), DaemonLine(1, "info", "same")]
    daemons = cast("Daemons", told)
    assert [line.text async for line in lines_of(daemons, "a", follow=False)] == ["same", "same"]
    async with asyncio.timeout(PATIENCE_S):
        following = lines_of(daemons, "a", follow=True)
        assert [(await anext(following)).text for _ in range(2)] == ["same", "same"]
        told.lines = [told.lines[1], DaemonLine(2, "info", "next")]
        assert (await anext(following)).text == "next"
        told.lines = [DaemonLine(3, "info", "much"), DaemonLine(4, "info", "later")]
        assert [(await anext(following)).text for _ in range(2)] == ["much", "later"]


async def test_a_wish_is_checked_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "wished.py").write_text("class Still:\n    def process(self, event):\n        return []\n")
    settings = {"psk": "77" * 32, "ephemeral": True, "daemons_dir": str(tmp_path / "daemons")}
    async with Node.open(NodeConfig.load(None, {}, **settings)) as node:
        for wish, error in (
            (DaemonWish(name="a b", factory="wished:Still"), ConfigError),
            (DaemonWish(name="a", factory="wished"), ConfigError),
            (DaemonWish(name="a", factory="wished:Still", inputs=("numbers@",)), ConfigError),
            (DaemonWish(name="a", factory="wished:Still", output="/"), ChannelError),
            (DaemonWish(name="a", factory="wished:Missing", path=(str(tmp_path),)), ConfigError),
        ):
            with pytest.raises(error):
                await start_wish(node.daemons, (), wish)
        offered = await start_wish(node.daemons, [tmp_path], DaemonWish(name="a", factory="wished:Still", offer=True))
        assert offered.state is DaemonState.OFFERED
        ran = await start_wish(node.daemons, [tmp_path], DaemonWish(name="b", factory="wished:Still"))
        assert ran.node == node.node_id
