"""What a batch takes is on the disk before it is taken, and what an earlier version left is continued."""

from pathlib import Path

import pytest

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.run.plans import PLANS, Plan, Plans

EMPTY = {"v": 1, "next": {}, "logs": {}}


def offset(seq: int) -> dict[str, object]:
    return {"v": 1, "next": {"a": seq}, "logs": {"a": "00"}}


def test_the_newest_plan_is_found_again_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    plans = Plans(tmp_path, "events")
    assert plans.newest() is None
    for batch in range(30):
        plans.write(Plan(batch, offset(batch), offset(batch + 1)))
    assert Plans(tmp_path, "events").newest() == Plan(29, offset(29), offset(30))
    assert Plans(tmp_path, "packets").newest() is None
    assert len(list((tmp_path / PLANS / "events").iterdir())) == 16


def test_a_plan_whose_writing_was_interrupted_does_not_count(tmp_path: Path) -> None:
    plans = Plans(tmp_path, "events")
    plans.write(Plan(0, EMPTY, offset(1)))
    (tmp_path / PLANS / "events" / "000000000001.new").write_text('{"start":')
    assert plans.newest() == Plan(0, EMPTY, offset(1))


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    plans = Plans(tmp_path, "events")
    plans.write(Plan(7, EMPTY, offset(1)))
    (tmp_path / PLANS / "events" / "000000000007.json").write_text("junk")
    with pytest.raises(PipelineError, match=r"000000000007\.json cannot be read; restore it from a backup") as caught:
        plans.newest()
    assert caught.value.fault is PipelineFault.BAD_CHECKPOINT


def test_the_checkpoint_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "_checkpoints" / "events" / "offsets"
    folder.mkdir(parents=True)
    for batch, seq in ((8, 80), (9, 90), (10, 100)):
        (folder / str(batch)).write_text(
            f'v1\n{{"batchWatermarkMs":0}}\n{{"v":1,"next":{{"a":{seq}}},"logs":{{"a":"00"}}}}'
        )
    assert Plans(tmp_path, "events").newest() == Plan(10, offset(90), offset(100))
    (folder / "10").write_text("v1\n")
    with pytest.raises(PipelineError, match="10 cannot be read"):
        Plans(tmp_path, "events").newest()
