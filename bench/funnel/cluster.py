"""A standalone Spark cluster on loopback, with workers of one core each, for the check of the capacity page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from meshbus.spark.run.sparksession import prepare_java

START_S = 120.0
"""Time limit for a master or a worker to start."""
MEMORY = "2g"
"""Memory of each worker."""
_CLASS = "org.apache.spark.deploy"
_POLL_S = 0.1


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """Run a master and some workers, and yield the address of the master."""
    prepare_java()
    with ExitStack() as stack:
        asked = [f"{_CLASS}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = stack.enter_context(_daemon(asked, r"spark://127\.0\.0\.1:\d+", folder / "master.log"))
        for number in range(workers):
            place = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(folder / f"worker-{number}")]
            asked = [f"{_CLASS}.worker.Worker", *place, "--cores", "1", "--memory", MEMORY, master]
            told = folder / f"worker-{number}.log"
            stack.enter_context(_daemon(asked, "Successfully registered with master", told))
        yield master


@contextmanager
def _daemon(arguments: list[str], ready: str, told: Path) -> Iterator[str]:
    """Run a part of Spark until the block ends, and yield what it writes when it is ready."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with told.open("w") as file:
        process = subprocess.Popen([program, *arguments], stdout=file, stderr=file, cwd=told.parent, env=environment)  # noqa: S603 - Spark itself
    try:
        until = time.monotonic() + START_S
        while not (found := re.search(ready, told.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{arguments[0]} did not start: {told.read_text()[-500:]}")
            time.sleep(_POLL_S)
        yield found[0]
    finally:
        process.terminate()
        process.wait()
