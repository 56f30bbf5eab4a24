"""A bound says how people see that it was reached."""

from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason


def bound(counter: Reason | str) -> Bound:
    return Bound(name="keys", what="keys", by=By.PEER, per_node=4, full="the oldest goes", counter=counter)


def test_a_reason_is_told_by_its_counter() -> None:
    assert bound(Reason.HANDSHAKE_CROWDED).told == "drop.handshake_crowded"


def test_another_counter_is_told_by_its_name_and_an_error_by_its_text() -> None:
    assert bound(forgotten("keys")).told == "forget.keys"
    assert bound("raises Backpressure").told == "raises Backpressure"
