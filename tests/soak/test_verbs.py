"""The commands of a pipeline as users run them: each starts Spark, so they are not in `make test`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbus.cli.exit import Exit
from meshbus.log.log import Redex
from tests.cli.running import SCRIPT
from tests.spark.packets import gateway_of, random_policy, record

pytestmark = pytest.mark.soak


def test_the_commands_of_a_pipeline(tmp_path: Path) -> None:
    def run(*arguments: str) -> list[dict[str, Any]]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MESHBUS_")}
        done = subprocess.run(
            [SCRIPT, "pipeline", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == Exit.OK, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    with Redex(tmp_path / "logs", background=False) as redex:
        redex.open("sensors/a").append_batch([b'{"n": 1}', b"not json"])
    rng = np.random.default_rng(3)
    record(tmp_path / "logs", 7, gateway_of(random_policy(rng)), rng, 500)
    declared = 'logs = ["logs"]\ntables = "tables"\n[[channels]]\nname = "sensors/a"\ncodec = "{}"\n{}'
    (tmp_path / "pipeline.toml").write_text(declared.format("json", 'schema = "n INT"\n'), "utf-8")
    (tmp_path / "policy.toml").write_text('subnet = "1"\n', "utf-8")

    assert {row["result"] for row in run("check")} == {"good"}
    assert run("run", "pipeline.toml", "--once")[-1]["state"] == "stopped"
    assert run("status", "tables")[0]["state"] == "stopped"
    assert all(row["recorded"] != row["proposed"] for row in run("replay", "tables", "--policy", "policy.toml"))
    (tmp_path / "pipeline.toml").write_text(declared.format("utf8", ""), "utf-8")
    assert run("repair", "pipeline.toml") == [{"repaired": 1}]
    assert run("rebuild", "pipeline.toml", "--from", "2020-01-01", "--to", "2100-01-01")
