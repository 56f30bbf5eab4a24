"""The protocol of formats, as the formats implement it."""

from pathlib import Path

from meshbus.spark.lake.tableformat import TableFile, TableFormat
from tests.spark.lake.formats.made import EVENTS, FORMATS, commit, open_table


def test_every_format_implements_the_protocol(tmp_path: Path) -> None:
    for kind in FORMATS:
        table = open_table(EVENTS, tmp_path / kind, kind)
        checked: TableFormat = table  # mypy compares the methods
        commit(table, 3, [1])
        (file,) = checked.files()
        assert file == TableFile(file.path, "events", 3, 3, Path(file.path).stat().st_size)
        assert Path(file.path).is_absolute()
