"""Every drop reason is used, has a counter of its own, is documented, and has a test that expects it."""

from meshbus.policy.reason import Reason
from tests.house import reasons, unchanged


def test_every_reason_is_used_in_the_source() -> None:
    unused = set(Reason.__members__) - reasons.used_in_source()
    assert not unused, f"nothing counts {sorted(unused)}: remove them from policy/reason.py"


def test_drops_and_refusals_are_counted_by_their_reason_alone() -> None:
    kinds = {reason.what for reason in Reason}
    free = sorted(name for name in unchanged.spelled_out() if name.partition(".")[0] in kinds)
    assert not free, f"{free} are counted by name: give each a row in policy/reason.py and use Counters.count"


def test_every_reason_has_a_test_that_expects_it() -> None:
    untested = set(Reason.__members__) - reasons.produced_by_tests()
    assert not untested, f"no test produces {sorted(untested)}: write one that names Reason.X or its counter"


def test_the_page_is_up_to_date() -> None:
    written = reasons.PAGE.read_text("utf-8")
    assert written == reasons.page(), "run `python -m tests.house.reasons` to write docs/reasons.md"
