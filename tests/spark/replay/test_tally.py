"""A worker counts the same as plain Python, however rows are divided into files, row groups and tasks."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.policy.reason import Reason
from meshbus.spark.io.inputs import stored
from meshbus.spark.replay import tally
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.spark.replay.tally import SAMPLES, Chosen, Judged, Tally, count, judge_task, move, plan
from tests.spark.packets import gateway_of, random_policy, read_record, record

COUNT = 6_000
RECORDERS = (7, 8, 2**63 + 9)


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Packets that three nodes recorded, each under its policy, in the order of time; the last node samples."""
    rng = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("record")
    for recorder, sampling in zip(RECORDERS, (1, 1, 2), strict=True):
        record(folder, recorder, gateway_of(random_policy(rng)), rng, COUNT // 3, sampling=sampling)
    return read_record(folder).sort_by("ts_ns")


@pytest.fixture
def judge() -> Judge:
    """Another policy."""
    return Judge(random_policy(np.random.default_rng(4)))


def is_chosen(row: dict[str, Any], chosen: Chosen) -> bool:
    return (
        row["src"] is not None
        and (chosen.recorder is None or row["recorder"] == stored(chosen.recorder))
        and (chosen.start is None or row["ts"] >= chosen.start)
        and (chosen.end is None or row["ts"] < chosen.end)
    )


def expected(packets: pa.Table, judge: Judge, chosen: Chosen = Chosen()) -> Counter[tuple[Any, ...]]:  # noqa: B008
    verdicts, meant = judge.judge_batch(packets)
    counts: Counter[tuple[Any, ...]] = Counter()
    for row, verdict, ours in zip(packets.to_pylist(), verdicts.tolist(), meant.tolist(), strict=True):
        if ours and is_chosen(row, chosen):
            said = 0 if row["reason"] == Reason.CROWDED.code else row["reason"]
            key = (row["channel"], row["src"], row["dst"], said, verdict)
            counts[*key, "packets"] += row["sampling_rate"]
            counts[*key, "bytes"] += row["sampling_rate"] * row["payload_len"]
    return counts


def told(batches: list[Any]) -> Counter[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in pa.Table.from_batches(batches).to_pylist():
        if not row["sample"]:
            key = (row["channel"], row["src"], row["dst"], row["reason"], row["proposed"])
            counts[*key, "packets"] += row["packets"]
            counts[*key, "bytes"] += row["bytes"]
    return counts


def run(files: list[Path], judge: Judge, chosen: Chosen = Chosen()) -> list[Any]:  # noqa: B008
    return [batch for task in plan(files, chosen) for batch in judge_task(task, judge, chosen)]


def write(folder: Path, packets: pa.Table, files: int, group: int) -> list[Path]:
    paths = []
    for number, start in enumerate(range(0, len(packets), -(-len(packets) // files))):
        paths.append(folder / f"{number}.parquet")
        pq.write_table(packets.slice(start, -(-len(packets) // files)), paths[-1], row_group_size=group)
    return paths


@pytest.mark.parametrize(("files", "group", "rows"), [(1, 10_000, 1 << 20), (1, 500, 1_000), (3, 700, 100)])
def test_counts_do_not_depend_on_how_rows_are_divided(
    tmp_path: Path, packets: pa.Table, judge: Judge, monkeypatch: pytest.MonkeyPatch, files: int, group: int, rows: int
) -> None:
    monkeypatch.setattr(tally, "_TASK_ROWS", rows)
    monkeypatch.setattr(tally, "BATCH_ROWS", min(rows, 1_000))
    assert told(run(write(tmp_path, packets, files, group), judge)) == expected(packets, judge)


def test_tasks_hold_about_so_many_rows(tmp_path: Path, packets: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "_TASK_ROWS", 1_000)
    one, two = map(str, write(tmp_path, packets.slice(0, 4_000), 2, 400))
    assert plan([Path(one), Path(two)], Chosen()) == [
        [(one, (0, 1, 2))],
        [(one, (3, 4)), (two, (0,))],
        [(two, (1, 2, 3))],
        [(two, (4,))],
    ]


def test_row_groups_outside_of_what_is_chosen_are_not_read(tmp_path: Path, packets: pa.Table, judge: Judge) -> None:
    paths = write(tmp_path, packets, 2, 1_000)
    middle = packets.column("ts")[len(packets) * 3 // 5].as_py()
    for chosen in (
        Chosen(None, middle, None),
        Chosen(None, None, middle),
        Chosen(8, middle - timedelta(minutes=1), middle),
        Chosen(RECORDERS[2]),
    ):
        assert told(run(paths, judge, chosen)) == expected(packets, judge, chosen)
    assert [piece.groups for task in plan(paths, Chosen(None, middle, None)) for piece in task] == [(0, 1, 2)]
    assert plan(paths, Chosen(10)) == []
    assert plan(paths, Chosen(None, datetime(2100, 1, 1, tzinfo=UTC))) == []


def test_samples_are_the_first_packets_of_each_kind_of_change(
    tmp_path: Path, packets: pa.Table, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "BATCH_ROWS", 300)
    given = pa.Table.from_batches(run(write(tmp_path, packets, 1, 2_000), judge)).to_pylist()
    shown = [row for row in given if row["sample"]]
    verdicts, meant = judge.judge_batch(packets)
    wanted: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row, verdict, ours in zip(packets.to_pylist(), verdicts.tolist(), meant.tolist(), strict=True):
        said = 0 if row["reason"] == Reason.CROWDED.code else row["reason"]
        kind = (said, verdict)
        if ours and row["src"] is not None and said != verdict and len(wanted.setdefault(kind, [])) < SAMPLES:
            wanted[kind].append(row)
    assert Counter((row["reason"], row["proposed"]) for row in shown) == {
        key: len(rows) for key, rows in wanted.items()
    }
    for kind, rows in wanted.items():
        mine = [row for row in shown if (row["reason"], row["proposed"]) == kind]
        for name in ("channel", "src", "dst", "ts", "origin", "stream_id", "packet_seq"):
            assert [row[name] for row in mine] == [row[name] for row in rows]


def random_columns(rng: np.random.Generator, rows: int, kinds: int) -> tuple[Any, ...]:
    return (
        rng.integers(0, kinds, rows).astype(np.int32),
        rng.integers(0, 2**32, 4).astype(np.uint32)[rng.integers(0, 4, rows)],
        rng.integers(0, 2**32, 4).astype(np.uint32)[rng.integers(0, 4, rows)],
        rng.integers(0, 7, rows).astype(np.int16),
        rng.integers(0, 7, rows).astype(np.uint8),
        rng.random(rows) < 0.9,
        rng.integers(1, 2**31, rows).astype(np.int32),
        rng.integers(0, 8_000, rows).astype(np.int32),
    )


@given(st.integers(0, 2**32), st.integers(0, 200), st.integers(1, 300), st.integers(0, 60))
def test_the_loop_counts_what_the_reference_counts(seed: int, rows: int, kinds: int, room: int) -> None:
    columns = random_columns(np.random.default_rng(seed), rows, kinds)
    compiled, plain = np.zeros((256, 4), np.uint64), np.zeros((256, 4), np.uint64)
    done = count.run(*[*columns, compiled, 0, room])
    head = tuple(column[:done] for column in columns)
    assert count.reference(*[*head, plain, 0, room]) == done
    assert sorted(compiled.tolist()) == sorted(plain.tolist())
    if done < rows:
        assert np.count_nonzero(compiled[:, 1]) == room
        assert count.reference(*[*columns, plain, done, 0]) == done
    for mover in (move.run, move.reference):
        larger = np.zeros((1024, 4), np.uint64)
        mover(compiled, larger)
        assert sorted(larger[larger[:, 1] > 0].tolist()) == sorted(compiled[compiled[:, 1] > 0].tolist())
        assert count.run(*[*columns, larger, done, 512]) == rows
        assert larger[:, 2].sum() == columns[6][columns[5]].sum()


def test_a_tally_grows_with_the_kinds() -> None:
    rows = 20_000
    names = pa.DictionaryArray.from_arrays(pa.array(np.arange(rows), pa.int32()), [f"c{n}" for n in range(rows)])
    ones = pa.array(np.ones(rows), pa.int32())
    batch = pa.record_batch([names, ones, ones, ones, ones], ["channel", "src", "dst", "sampling_rate", "payload_len"])
    judged = Judged(np.zeros(rows, np.int16), np.zeros(rows, np.uint8), np.ones(rows, np.bool_))
    counted = Tally()
    for _ in range(2):
        counted.add(batch, judged)
    found = counted.to_batch()
    assert sorted(found.column("channel").to_pylist()) == sorted(f"c{n}" for n in range(rows))
    assert set(found.column("packets").to_pylist()) == {2}
