"""NAT type and address in announcements."""

import pytest

from meshbus.engine.directory.reachability import Nat


@pytest.mark.parametrize(
    ("tags", "kind"),
    [([], "unknown"), (["gpu", "nat:cone"], "cone"), (["nat:purple"], "unknown"), (["nat:"], "unknown")],
)
def test_an_announcement_says_the_kind(tags: list[str], kind: str) -> None:
    assert Nat.of_tags(tags) == kind
