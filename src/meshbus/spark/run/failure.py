"""One sentence for whatever Spark throws: our own error where one lies inside, else the first line that says something.

Spark wraps an error of a worker or of a data source in its own, with the traces of two languages around it.
"""

from __future__ import annotations

import re

_OURS = re.compile(r"meshbus\.errors\.\w+: (?P<text>[^\n]+)")
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(?P<kind>[A-Z]\w*(?:Error|Exception|Warning)): (?P<text>[^\n]+)", re.MULTILINE)
_VERSION = re.compile(r"Python in worker has different version[^\n.]*|PYTHON_VERSION_MISMATCH[^\n]*")
_LONGEST = 500


def sentence_of_failure(error: BaseException) -> str:
    """Give what went wrong, on one line."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return _short(ours[-1])
    if _VERSION.search(text):
        return (
            "the workers run another Python than the driver: set PYSPARK_PYTHON to one of the same version,"
            " with meshbus installed, on every worker"
        )
    if "No module named 'meshbus" in text:
        return "meshbus is not installed in the Python of the workers: install it there, or set PYSPARK_PYTHON"
    if "failed to connect back" in text:
        return "a Python worker did not answer within ten seconds: this machine is busy, or the Python does not start"
    python = [match for match in _PYTHON.finditer(text) if "pyspark" not in match[0].split(":", 1)[0]]
    if python:
        return _short(f"{python[-1]['kind']}: {python[-1]['text']}")
    lines = [line for line in text.splitlines() if line.strip()]
    return _short(lines[0]) if lines else type(error).__name__


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
