"""Test where packets go by their subprotocol id: single packets, batches, and both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from meshbus.engine.receive.dispatch import Dispatch, Disposition, Way, split
from meshbus.engine.services import SERVICES
from meshbus.engine.settings import OpaqueMode
from meshbus.policy.reason import Reason
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.constants import Subprotocol
from tests.vectors import load

IDS: list[dict[str, Any]] = load("subprotocols")["subprotocol_ids"]
PLAIN = (Subprotocol.MEMBERSHIP, Subprotocol.STREAM_WINDOW, Subprotocol.CAPABILITY, Subprotocol.NEGOTIATION)
PROFILE = (Subprotocol.RELIABLE, Subprotocol.REQUEST)
TABLE = [row for row in SERVICES if row.id in {*PLAIN, *PROFILE}]
NOTHING = NegotiatedSet()
STRICT = Dispatch(TABLE)
COMPATIBLE = Dispatch(TABLE, OpaqueMode.COMPATIBLE)


def test_plain_events_and_services_have_their_way() -> None:
    for dispatch in (STRICT, COMPATIBLE):
        assert dispatch.disposition(Subprotocol.EVENTS, NOTHING) == Disposition(Way.EVENTS, owes_grant=True)
        for subprotocol_id in PLAIN:
            assert dispatch.disposition(subprotocol_id, NOTHING) == Disposition(Way.SERVICE, owes_grant=False)


def test_the_profile_is_served_only_when_negotiated() -> None:
    agreed = NegotiatedSet(frozenset({Subprotocol.RELIABLE, 0x5000}))
    for dispatch, way in ((STRICT, Way.DROP), (COMPATIBLE, Way.OPAQUE)):
        assert dispatch.disposition(Subprotocol.RELIABLE, agreed).way is Way.SERVICE
        for subprotocol_id, negotiated in ((Subprotocol.RELIABLE, NOTHING), (Subprotocol.REQUEST, agreed)):
            assert dispatch.disposition(subprotocol_id, negotiated) == Disposition(
                way, owes_grant=True, reason=Reason.NOT_NEGOTIATED
            )
        assert dispatch.disposition(0x5000, agreed).way is Way.OPAQUE, "agreed on, but nobody here serves it"


@pytest.mark.parametrize(
    ("subprotocol_id", "strict"),
    [
        (0x0001, Way.DROP),
        (0x0400, Way.DROP),
        (0x0F00, Way.DROP),
        (0x1000, Way.DROP),
        (0x1001, Way.OPAQUE),
        (0xFFFF, Way.OPAQUE),
    ],
)
def test_unknown_ids_are_dropped_below_the_vendor_range_unless_compatible(subprotocol_id: int, strict: Way) -> None:
    assert STRICT.disposition(subprotocol_id, NOTHING).way is strict
    assert COMPATIBLE.disposition(subprotocol_id, NOTHING).way is Way.OPAQUE
    assert STRICT.disposition(subprotocol_id, NOTHING).reason == Reason.UNKNOWN_SUBPROTOCOL


@pytest.mark.parametrize("row", IDS, ids=lambda row: hex(row["id"]))
def test_what_a_reference_node_takes_for_events_is_owed_a_grant(row: dict[str, Any]) -> None:
    # A subprotocol that must be negotiated, and was not: its row alone says whether a grant is owed.
    nobody = Dispatch(table_row._replace(profile=True) for table_row in SERVICES)
    on_event_path = "event path" in row["node_behaviour"] or "inbox" in row["node_behaviour"]
    assert nobody.disposition(row["id"], NOTHING).owes_grant == on_event_path


# ── batches ─────────────────────────────────────────────────────────────────────────────────


def test_a_batch_of_plain_events_is_one_group_of_all_rows() -> None:
    ids = np.zeros(500, np.uint16)
    [group] = split(ids)
    assert group.subprotocol_id == Subprotocol.EVENTS
    assert len(ids[group.rows]) == 500
    assert np.shares_memory(ids, ids[group.rows]), "the hot path copies nothing"
    assert list(split(ids[:0])) == []


def test_messages_keep_their_order_and_come_before_the_events() -> None:
    ids = np.array([0, 0xC00, 0, 0xA00, 0xA00, 0, 0xC00], np.uint16)
    parts = [(group.subprotocol_id, np.arange(7)[group.rows].tolist()) for group in split(ids)]
    assert parts == [(0xC00, [1]), (0xA00, [3, 4]), (0xC00, [6]), (0, [0, 2, 5])]


@given(npst.arrays(np.uint16, st.integers(0, 40), elements=st.sampled_from([0, 0, 0, 0xA00, 0xB00, 0x7777])))
def test_every_row_is_in_one_group_under_its_id(ids: Any) -> None:
    groups = split(ids)
    rows = [np.arange(len(ids))[group.rows].tolist() for group in groups]
    assert sorted(row for members in rows for row in members) == list(range(len(ids)))
    for group, members in zip(groups, rows, strict=True):
        assert members
        assert members == sorted(members)
        assert set(ids[members].tolist()) == {group.subprotocol_id}
    messages = [row for group, members in zip(groups, rows, strict=True) if group.subprotocol_id for row in members]
    assert messages == sorted(messages)
    assert [group.subprotocol_id == 0 for group in groups] == sorted(group.subprotocol_id == 0 for group in groups)
