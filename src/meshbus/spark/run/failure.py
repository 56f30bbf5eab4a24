"""Reduce any exception of Spark to one sentence: a meshbus error inside it, else its first meaningful line.

Spark wraps the errors of workers and data sources in its own, with stack traces of Python and Java around them.
"""

from __future__ import annotations

import re

_OURS = re.compile(r"meshbus\.errors\.\w+: (?P<text>[^\n]+)")
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(?P<kind>[A-Z]\w*(?:Error|Exception|Warning)): (?P<text>[^\n]+)", re.MULTILINE)
_VERSION = re.compile(r"Python in worker has different version[^\n.]*|PYTHON_VERSION_MISMATCH[^\n]*")
_FULL = "No space left on device"
"""As the operating system says it; Java and delta-rs repeat it."""
_LONGEST = 500
"""Characters of a sentence: a few lines on a terminal."""


def sentence_of_failure(error: BaseException) -> str:
    """Return the cause of a failure, on one line."""
    text = str(error)
    # The innermost error is the last one in the text.
    ours = _OURS.findall(text)
    if ours:
        return _short(ours[-1])
    if _VERSION.search(text):
        return (
            "the workers run another Python version than the driver; set PYSPARK_PYTHON to one of the same version,"
            " with meshbus installed, on every worker"
        )
    if "No module named 'meshbus" in text:
        return "meshbus is not installed in the Python of the workers; install it there, or set PYSPARK_PYTHON"
    if _FULL in text:
        named = error.filename2 or error.filename if isinstance(error, OSError) else None
        where = f" for {named}" if named else " for the tables or for Spark's temporary files"
        return _short(f"no space is left on the disk{where}; free some: what was not written is written again")
    if "failed to connect back" in text:
        return "a Python worker did not start within ten seconds; check PYSPARK_PYTHON and the load of the machine"
    python = [match for match in _PYTHON.finditer(text) if "pyspark" not in match[0].split(":", 1)[0]]
    if python:
        return _short(f"{python[-1]['kind']}: {python[-1]['text']}")
    lines = [line for line in text.splitlines() if line.strip()]
    return _short(lines[0]) if lines else type(error).__name__


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
