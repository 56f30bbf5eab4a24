"""What the lake says comes back; that it is true is tested from outside, in tests/cli/test_demo.py."""

from pathlib import Path

import pytest

from meshbus.demo.lake import ANSWER, Found, Read, Ready, lake_process, pack
from meshbus.errors import MeshError
from meshbus.spark.replay.replay import Change, Replay

REPLAY = Replay(4, 3, (Change("a\nb", "3.1", "3.2", "forward", "not_ancestor", 3, 99),), ({"channel": "a"},))


@pytest.mark.parametrize("line", [Ready(), Read(7), Found("tables", 7, 5, 4, REPLAY)])
def test_a_line_comes_back(line: Ready | Read | Found) -> None:
    text = pack(line)
    assert text.index(b"\n") == len(text) - 1
    assert ANSWER.decode(text) == line


@pytest.mark.slow
async def test_what_spark_is_missing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(empty))
    (empty / "pyspark").mkdir()
    (empty / "pyspark" / "__init__.py").write_text("raise ImportError('broken')")
    async with lake_process(tmp_path, lambda _: False) as spark:
        with pytest.raises(
            MeshError, match=r"the process of spark has exited: pyspark is not installed; run: pip install"
        ):
            await spark.answer()
    assert "Traceback" in (tmp_path / "spark-stderr.txt").read_text()
