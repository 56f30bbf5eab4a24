"""Values that a log reports about itself."""

import pytest

from meshbus.log.status import Report


@pytest.mark.parametrize(
    ("report", "clean"),
    [
        (Report(), True),
        (Report(created=True), True),
        (Report(cut_bytes=1, cut_why="x"), False),
        (Report(removed=("a",)), False),
        (Report(foreign=("b",)), False),
    ],
)
def test_a_report_is_clean_unless_something_was_found(report: Report, clean: bool) -> None:
    assert report.clean is clean
