"""Values that a log reports about itself."""

from pathlib import Path

import pytest

from meshbus.log.status import Report, SegmentFile


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


@pytest.mark.parametrize(
    ("uri", "local", "place"), [(None, True, "local"), ("s3://b/a", True, "both"), ("s3://b/a", False, "remote")]
)
def test_a_segment_is_where_its_files_are(uri: str | None, local: bool, place: str) -> None:
    assert SegmentFile(Path("a"), 0, 1, 10, uri, local).place == place
