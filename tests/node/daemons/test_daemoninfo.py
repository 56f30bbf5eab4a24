"""What is told about daemons: plain values that can be written as JSON."""

from __future__ import annotations

import json

import msgspec

from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonInput, DaemonState


def test_an_info_is_plain_data_and_unknown_is_none() -> None:
    info = DaemonInfo(origin=1, name=None, state=DaemonState.DAMAGED, node=None)
    row = json.loads(msgspec.json.encode(info))
    assert row["state"] == "damaged"
    assert [row[name] for name in ("outputs", "processed", "moves", "phase", "error")] == [None] * 5
    assert DaemonInput("numbers", None, 3).publisher is None
