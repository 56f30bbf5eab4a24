"""Whatever Spark throws, people read one sentence."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshbus.spark.run.failure import sentence_of_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = """[STREAM_FAILED] Query terminated
Traceback (most recent call last):
  File "reader.py", line 52, in list_channels
meshbus.errors.LogError: /data/log is not a folder of logs; check the path
 SQLSTATE: 38000
\tat org.apache.spark.X"""
WORKER = """Job aborted
Traceback (most recent call last):
  File "x.py", line 1, in f
ZeroDivisionError: division by zero
\tat org.apache.spark.X"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (OURS, "/data/log is not a folder of logs; check the path"),
        (WORKER, "ZeroDivisionError: division by zero"),
        (
            "ModuleNotFoundError: No module named 'meshbus'\n at x",
            "meshbus is not installed in the Python of the workers",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than 3.11",
            "another Python version than",
        ),
        ("Python worker failed to connect back.\n at x", "did not start within ten seconds"),
        (
            "java.io.IOException: No space left on device\n at x",
            "no space is left on the disk for the tables or for Spark's temporary files; free some",
        ),
        ("first line\nsecond line", "first line"),
        ("", "ValueError"),
    ],
)
def test_a_failure_is_one_sentence(text: str, sentence: str) -> None:
    told = sentence_of_failure(ValueError(text))
    assert told.startswith(sentence) or sentence in told
    assert "\n" not in told


def test_a_full_disk_is_named() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/log/a.parquet", None, "/tables/a.parquet")
    assert sentence_of_failure(full).startswith("no space is left on the disk for /tables/a.parquet; free some")


def test_a_novel_is_cut() -> None:
    assert len(sentence_of_failure(ValueError("x" * 5_000))) <= 500


OTHER_VERSION = """
import pyspark.worker_util as asked
class Older:
    version_info = (3, 8)
    def __getattr__(self, name):
        return getattr(sys, name)
asked.sys = Older()
"""
NO_MESHBUS = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "meshbus":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Missing())
"""


def same(batches: Iterator[Any]) -> Iterator[Any]:
    import meshbus.names  # noqa: F401 - what every worker of ours needs

    yield from batches


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (OTHER_VERSION, "the workers run another Python version than the driver; set PYSPARK_PYTHON"),
        (NO_MESHBUS, "meshbus is not installed in the Python of the workers; install it there"),
    ],
)
def test_a_wrong_python_of_the_workers_is_one_sentence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, sentence: str
) -> None:
    """Spark's own workers, in a Python that says so of itself; the same session works again with the right one."""
    from pyspark.errors import PythonException

    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{wrong}")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "pythonExec", str(python))
        rows = spark.range(3).mapInArrow(same, "id LONG")
        with pytest.raises(PythonException) as caught:
            rows.collect()
    assert sentence_of_failure(caught.value).startswith(sentence)
    assert [row["id"] for row in spark.range(3).mapInArrow(same, "id LONG").collect()] == [0, 1, 2]
