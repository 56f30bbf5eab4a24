"""Numbered batches: each is appended once, complete and in order, wherever a try fails and whatever others append."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from meshbus.log import once
from meshbus.log.log import RedexFile
from meshbus.log.once import BATCH, PLACE, WRITER, rows_done, slices_left
from tests.log.making import open_log, payloads
from tests.seeds import for_each_seed


def rows(batch: int, count: int) -> pa.Table:
    return pa.table({"payload": [b"%d:%d" % (batch, number) for number in range(count)], "ts_ns": range(count)})


def put(log: RedexFile, writer: str, batch: int, count: int, *, slices: int | None = None) -> None:
    """Append what is missing of a batch, or fail after some slices."""
    for part, columns in slices_left(log, rows(batch, count), writer, batch)[:slices]:
        log.append_batch(part, **columns)


def test_how_much_of_a_batch_is_in_the_log(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert rows_done(log, "w", 0, 3) == 0
        put(log, "w", 7, 3)
        assert [rows_done(log, "w", batch, 3) for batch in (6, 7, 8)] == [3, 3, 0]
        assert rows_done(log, "v", 7, 3) == 0


def test_events_carry_their_marks_beside_their_own_headers(tmp_path: Path) -> None:
    own = pa.array([[("unit", b"m")], None], pa.map_(pa.string(), pa.binary()))
    table = pa.table({"payload": [b"a", b"b"], "headers": own, "other": [1, 2]})
    with open_log(tmp_path) as log:
        for part, columns in slices_left(log, table, "w", 3):
            log.append_batch(part, **columns)
        first, second = log.read_range(0, 9)
    assert first.headers == {"unit": b"m", WRITER: b"w", BATCH: b"3", PLACE: b"0"}
    assert second.headers == {WRITER: b"w", BATCH: b"3", PLACE: b"1"}


@for_each_seed(range(20))
def test_tries_that_die_anywhere_add_up_to_every_batch_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "EVENTS_AT_ONCE", 4)
    monkeypatch.setattr(once, "_LOOK_BACK", 3)
    rng = random.Random(seed)
    with open_log(tmp_path / str(seed)) as log:
        for batch in range(4):
            for _ in range(rng.randrange(4)):
                put(log, "w", batch, 14, slices=rng.randrange(4))
                put(log, "v", batch, 5, slices=rng.randrange(3))
            put(log, "w", batch, 14)
            put(log, "v", batch, 5)
            if rng.random() < 0.3:
                log.seal()
        events = list(log.read_range(0, 999))
    for writer, count in (("w", 14), ("v", 5)):
        own = [event for event in events if (event.headers or {})[WRITER] == writer.encode()]
        assert payloads(own) == [b"%d:%d" % (batch, number) for batch in range(4) for number in range(count)]
