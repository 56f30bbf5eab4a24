from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from meshbus.engine.replicas.roles import Signal, TagEffect, Verdict, judge, tag_effect
from meshbus.wire.messages.redex import Role
from tests.vectors import load

TABLE: list[dict[str, Any]] = load("subprotocols")["coordinator"]["transitions"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['from']} {row['to']} {row['signal']}")
def test_the_reference_allows_the_same_transitions(row: dict[str, str]) -> None:
    old, new = Role[row["from"].upper()], Role[row["to"].upper()]
    assert judge(old, new, Signal(row["signal"])) == Verdict(row["result"])
    if "tag_effect" in row:
        assert row["tag_effect"].startswith(tag_effect(old, new).name.lower())


def test_the_table_names_every_triple() -> None:
    assert len(TABLE) == len(list(product(Role, Role, Signal))) == 160


def test_closing_an_idle_channel_changes_no_tag() -> None:
    assert tag_effect(Role.IDLE, Role.IDLE) == TagEffect.NONE
