"""Whatever Spark throws, people read one sentence."""

import pytest

from meshbus.spark.failure import sentence_of_failure

OURS = """[STREAM_FAILED] Query terminated
Traceback (most recent call last):
  File "reader.py", line 52, in list_channels
meshbus.errors.LogError: /data/log is no folder of logs: check the path
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
        (OURS, "/data/log is no folder of logs: check the path"),
        (WORKER, "ZeroDivisionError: division by zero"),
        (
            "ModuleNotFoundError: No module named 'meshbus'\n at x",
            "meshbus is not installed in the Python of the workers",
        ),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than 3.11", "another Python than"),
        ("Python worker failed to connect back.\n at x", "did not answer within ten seconds"),
        ("first line\nsecond line", "first line"),
        ("", "ValueError"),
    ],
)
def test_a_failure_is_one_sentence(text: str, sentence: str) -> None:
    told = sentence_of_failure(ValueError(text))
    assert told.startswith(sentence) or sentence in told
    assert "\n" not in told


def test_a_novel_is_cut() -> None:
    assert len(sentence_of_failure(ValueError("x" * 5_000))) <= 500
