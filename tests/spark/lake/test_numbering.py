"""What the numbers of a log are: positions in it, those of publishers, or positions in a replicated log."""

import numpy as np
import pyarrow as pa

from meshbus.log.positions import Mark
from meshbus.spark.lake.numbering import Numbering, any_of

OWN, OLD, NEW = b"o" * 16, b"1" * 16, b"2" * 16


def rows(*of: tuple[int, int | None]) -> pa.Table:
    return pa.table(
        {
            "seq": pa.array(range(len(of)), pa.int64()),
            "origin": pa.array([origin for origin, _ in of], pa.int64()),
            "pub_seq": pa.array([number for _, number in of], pa.int64()),
        }
    )


def test_a_replica_is_known_by_its_own_id_and_by_those_it_was_marked_with() -> None:
    assert Numbering(OWN).ids == (OWN,)
    marks = Mark(OLD.hex()), Mark(OWN.hex()), Mark(NEW.hex(), first=7), Mark(NEW.hex(), "0" * 15 + "5")
    assert Numbering(OWN, shared=True, marks=marks).ids == (OWN, OLD, NEW)


def test_a_mark_is_valid_until_the_next_one_of_the_same_sender() -> None:
    sender, other = f"{(1 << 64) - 5:016x}", f"{6:016x}"
    log = Numbering(OWN, marks=(Mark(OLD.hex(), sender), Mark(NEW.hex(), other, 1), Mark(NEW.hex(), sender, 3)))
    table = rows((-5, 0), (-5, None), (6, 1), (-5, 2), (6, 3), (7, 4))
    found = {one.log_id: one.rows.tolist() for one in log.positioned(table)}
    assert found == {
        OLD: [True, False, False, False, False, False],
        NEW: [False, False, True, True, True, False],
    }
    assert any_of(log.positioned(table), 6).tolist() == [True, False, True, True, True, False]


def test_most_logs_have_no_such_rows() -> None:
    assert Numbering(OWN).positioned(rows((5, 1))) == []
    assert Numbering(OWN, marks=(Mark(OLD.hex(), "0" * 15 + "5"),)).positioned(rows()) == []
    assert not np.any(any_of([], 3))
