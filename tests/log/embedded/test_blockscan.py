"""The parts of blocks: compiled loops equal their references, and damage is noticed before anything is read."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from meshbus.log.embedded import blockscan
from meshbus.log.embedded.blockscan import Damaged, Parts, survey
from tests.log.kernels import references
from tests.log.making import in_files, numbered, open_log
from tests.log.varied import ranges, surveyed, varied_appends
from tests.seeds import for_each_seed

KERNELS = (blockscan._survey, blockscan._copy_payloads)


def forms() -> list[AbstractContextManager[None]]:
    """Compiled, and as references."""
    return [nullcontext(), references(*KERNELS)]


def joined(parts: Parts, low: int, high: int, size: int) -> tuple[bytes, list[int]]:
    found = [(bytes(part), rows) for part, rows in parts.payloads(low, high, size)]
    return b"".join(part for part, _ in found), [rows for _, rows in found]


@for_each_seed(range(6))
def test_payloads_come_after_their_lengths_in_parts(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    appends = varied_appends(seed, 12)
    parts = surveyed(tmp_path_factory.mktemp("log"), appends)
    events = [event for each in appends for event in each.events]
    assert parts.rows == len(events)
    for low, high in ranges(len(events)):
        expected = b"".join(len(event).to_bytes(4, "little") + event for event in events[low:high])
        for size in (16, 500, 1 << 20):  # 16: smaller than most payloads
            found, rows = joined(parts, low, high, size)
            assert found == expected
            assert sum(rows) == high - low
            with references(*KERNELS):
                assert joined(parts, low, high, size) == (found, rows)
    assert len(joined(parts, 0, len(events), 500)[1]) > 1


@for_each_seed(range(4))
def test_the_survey_finds_what_its_reference_finds(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    appends = varied_appends(seed, 12)
    found = surveyed(tmp_path_factory.mktemp("log"), appends)
    with references(*KERNELS):
        expected = surveyed(tmp_path_factory.mktemp("log"), appends)
    assert found.bodies.tolist() == expected.bodies.tolist()
    assert [found.block_of(row) for row in found.firsts.tolist()[:-1]] == list(range(len(appends)))


def test_a_file_with_headers_is_left_to_others(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"plain")
        log.append(b"with headers", headers={"a": b"1"})
        (view,) = in_files(log).hot
    for form in forms():
        with form:
            assert survey(view) is None


def change(path: Path, at: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(4, 8, id="length"),
        pytest.param(40, 1, id="count"),
        pytest.param(44, 1, id="payload bytes"),
        pytest.param(48 + 3, 4, id="kind"),
        pytest.param(48 + 3, 64, id="no such kind"),
    ],
)
def test_a_block_whose_sizes_do_not_add_up_is_named(tmp_path: Path, at: int, value: int) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        log.append_batch(numbered(5, 5), ts_ns=np.arange(5))
        log.append_batch(numbered(10, 5))
        (view,) = in_files(log).hot
    change(view.path, view.place_of(1) + at, value)
    for form in forms():
        with form, pytest.raises(Damaged) as caught:
            survey(view)
        assert caught.value.at == view.place_of(1)


def test_a_file_that_is_shorter_or_has_other_rows_than_its_index_is_damaged(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        log.append_batch(numbered(5, 5))
        (view,) = in_files(log).hot
        places, firsts = view.layout()
        whole = np.frombuffer(view.path.read_bytes(), np.uint8)
    shorter = Parts(whole[: places.item(1) + 70], places, firsts, np.zeros(2, np.int64))
    others = Parts(
        whole, places, firsts + np.array([0, 0, 1]), np.zeros(2, np.int64)
    )  # the second block should have six rows
    for form in forms():
        with form:
            assert blockscan._survey.run(*shorter) == 1
            assert blockscan._survey.run(*others) == 1


def test_offsets_that_point_outside_of_their_block_are_noticed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        (view,) = in_files(log).hot
    parts = survey(view)
    assert parts is not None
    change(view.path, parts.bodies.item(0) + 4 * 2 + 2, 1)  # the third offset is now beyond the payloads
    changed = parts._replace(data=np.frombuffer(view.path.read_bytes(), np.uint8))
    for form in forms():
        with form, pytest.raises(Damaged):
            joined(changed, 0, 5, 100)
