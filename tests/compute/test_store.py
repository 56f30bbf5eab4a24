from __future__ import annotations

from meshbus.compute.store import MAX_BEGUN, DaemonStore, Decision, Mark, Outcome, Status, Stored, begin
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import BufferedEvent
from tests.compute.memorystore import MemoryStore


def test_the_store_of_tests_keeps_what_the_seam_promises() -> None:
    store: DaemonStore = MemoryStore()
    event = BufferedEvent(CausalLink(1), b"x", 1)
    store.save(7, Stored(mark=Mark(status=Status.STAGED, attempt=3), snapshot=b"s"))
    store.append(7, [event])
    store.mark(7, Mark(status=Status.ACTIVE))
    assert store.load(7) == Stored(mark=Mark(status=Status.ACTIVE), snapshot=b"s", replayed=(event,))
    assert store.marked(7) == Mark(status=Status.ACTIVE)
    assert store.origins() == [7]
    store.remove(7)
    store.remove(7)
    assert (store.load(7), store.marked(7), store.origins()) == (None, None, [])


def test_a_mark_remembers_the_last_attempts() -> None:
    mark = Mark(status=Status.ACTIVE)
    for attempt in range(MAX_BEGUN + 3):
        mark = begin(mark, attempt)
    assert mark.begun == tuple(range(3, MAX_BEGUN + 3))


def test_there_is_one_decision_for_each_daemon() -> None:
    store: DaemonStore = MemoryStore()
    for outcome in (Outcome.HAND_OVER, Outcome.BEGIN):
        store.decide(Decision(origin=7, source=1, target=2, attempt=3, outcome=outcome))
    assert [decision.outcome for decision in store.decisions()] == [Outcome.BEGIN]
    store.settle(7)
    store.settle(7)
    assert store.decisions() == []
