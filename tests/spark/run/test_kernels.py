"""A pipeline loads its kernels while it starts, and nothing more afterwards."""

import subprocess
import sys

import pytest

from meshbus import beside, jit
from meshbus.log.packets import packed, runs
from meshbus.spark.lake import jsoncheck
from meshbus.spark.run.kernels import load_kernels
from tests.patience import PATIENCE_S

READ = """
import sys, tempfile
from pathlib import Path
import numpy as np, pyarrow as pa
from numba.core.dispatcher import Dispatcher
from meshbus import beside, jit
from meshbus.log.payload import Codec
from meshbus.spark.lake.codec import Form
from meshbus.spark.lake.jsoncheck import surely_valid
from meshbus.spark.run.kernels import load_kernels
from tests.log.making import open_log
from tests.spark.packets import gateway_of, random_policy, read_record, record

folder, rng = Path(sys.argv[1]), np.random.default_rng(3)
if sys.argv[2] == "write":
    record(folder, 7, gateway_of(random_policy(rng)), rng, 1_000)
    with open_log(folder / "logs") as log:
        log.append_batch([b'{"a": 1}'] * 100)
        log.append(b"one")
    sys.exit()
load_kernels()
assert beside.wait(100)
compile_for = Dispatcher.compile
ours = {kernel.loop for kernel in jit.KERNELS}

def watched(self, types):
    if self.py_func in ours:
        print(self.py_func.__qualname__)
    return compile_for(self, types)

Dispatcher.compile = watched
assert len(read_record(folder)) > 100
with open_log(folder / "logs") as log:
    assert sum(len(batch) for batch in log.read_batches()) == 101
for codec in (Codec.JSON, Codec.UTF8):
    surely_valid(Form(codec), pa.array([b'{"a": [1, 2]}', b"x"], pa.binary()))
"""


def test_the_kernels_of_a_pipeline_are_loaded_beside_the_start() -> None:
    load_kernels()
    assert beside.wait(PATIENCE_S)
    for kernel in (jsoncheck._check_text, jsoncheck._check_json, packed._walk, runs._gather):
        assert bool(getattr(kernel.run, "signatures", None)) == jit.available()


@pytest.mark.skipif(not jit.available(), reason="numba is not installed, or switched off")
def test_reading_logs_and_packets_loads_nothing_more(tmp_path: object) -> None:
    for step in ("write", "read"):
        command = [sys.executable, "-c", READ, str(tmp_path), step]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
