"""What the guide to typed columns says works, block by block."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.newcomer.page import steps_of


def test_the_page_can_be_followed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for step in steps_of("schemas.md"):
        if step.kind == "python in order":
            # The workers of the shared session run in another directory.
            text = step.text.replace('.load("log")', f'.load("{tmp_path}/log")')
            exec(compile("\n" * (step.line - 1) + text, "schemas.md", "exec"), names)
        elif step.kind == "console":
            for line in step.text.splitlines():
                command = line.removeprefix("$ ")
                if command.startswith("meshbus "):
                    subprocess.run(["sh", "-c", f"{sys.executable} -m {command}"], check=True, timeout=60)
    assert "both" in names
