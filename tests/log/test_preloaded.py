"""The same faults below the interpreter: a library that is loaded first lets system calls fail (fiu-run of libfiu).

It needs the program `fiu-run` (package fiu-utils of Debian); without it, the faults of test_faults.py have to do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.log.making import numbered, open_log

FAULTS = {
    "sync": "enable_random name=posix/io/sync/fsync,probability=0.2,failinfo=5",
    "rename": "enable_random name=posix/io/dir/rename,probability=0.3,failinfo=28",
}
"""EIO when syncing, ENOSPC when renaming. Opening is left out: the interpreter opens files too."""

WRITER = """
import sys
from pathlib import Path
from meshbus.errors import LogError
from meshbus.log.durability import every_n
from tests.log.making import numbered, open_log

root, log, refused = Path(sys.argv[1]), None, 0
for turn in range(200):
    try:
        if log is None:
            log = open_log(root, fsync=every_n(1), seal_bytes=2000)
        seq = log.next_seq
        log.append_batch(numbered(seq, 3))
        print(seq + 3, flush=True)
        if turn % 20 == 19:
            log.seal()
    except LogError:
        refused += 1
        if refused % 10 == 0 and log is not None:
            try:
                log.close()
            except LogError:
                pass
            log = None
print("refused", refused, flush=True)
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_log_survives_system_calls_that_fail(fault: str, tmp_path: Path) -> None:
    if shutil.which("fiu-run") is None:
        pytest.skip("needs the program 'fiu-run' (package fiu-utils)")
    command = ["fiu-run", "-x", "-c", FAULTS[fault], sys.executable, "-c", WRITER, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    lines = done.stdout.split("\n")
    assert "Traceback" not in done.stderr, done.stderr
    acknowledged = max((int(line) for line in lines if line.isdigit()), default=0)
    assert acknowledged > 0
    with open_log(tmp_path / "log") as log:
        assert log.next_seq >= acknowledged
        events = [event.payload for event in log.read_range(0, acknowledged)]
        assert events == numbered(0, acknowledged)
        assert log.verify() == []
