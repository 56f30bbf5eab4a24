"""A hang is named, nothing outlives its test, and children can be interrupted even if this process cannot."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import child
from tests.demo.leftover import gone
from tests.house.tree import ROOT

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SUITE = f"""
import os, signal, subprocess, sys
from pathlib import Path
import pytest
from tests.children import child

SLEEPER = [sys.executable, "-c", {SLEEP!r}]

def started(process, name):
    process.stdout.readline()
    Path(name).write_text(str(process.pid))

def test_interrupt():
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    with child(SLEEPER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        started(process, "interrupted")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    os.kill(os.getpid(), signal.SIGINT)  # this process goes on ignoring it

@pytest.mark.timeout(3)
def test_hang():
    with child(SLEEPER, stdout=subprocess.PIPE) as process:
        started(process, "hanging")
        process.wait()

def test_leak():
    program = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
    told = subprocess.run([sys.executable, "-c", program, *SLEEPER], stdout=subprocess.PIPE)
    Path("leaked").write_bytes(told.stdout)

def test_after():
    pass
"""


def run_suite(folder: Path) -> str:
    """Run the suite above with SIGINT ignored, as a shell does for a command in the background."""
    (folder / "conftest.py").write_text(
        "pytest_plugins = ['tests.children']\n"
        "def pytest_configure():\n    import tests.children\n    tests.children._GRACE_S = 0.5\n"
    )
    (folder / "test_suite.py").write_text(SUITE)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null", "--rootdir", ".", "--timeout=60"]
    answer = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest", *options],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return answer.stdout


@on_linux
def test_a_suite_with_the_interrupt_ignored_ends_and_leaves_nothing_running(tmp_path: Path) -> None:
    shown = run_suite(tmp_path)
    assert "1 failed, 3 passed, 1 error" in shown, shown
    assert "FAILED test_suite.py::test_hang - Failed: Timeout (>3.0s)" in shown
    assert "ERROR test_suite.py::test_leak - Failed: left running: " in shown
    for name in ("interrupted", "hanging", "leaked"):
        assert gone(int((tmp_path / name).read_text())), name


def test_a_child_and_its_group_end_with_the_block() -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
    with child([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"  # its own child is up
    assert process.returncode == -signal.SIGKILL
    assert process.stdout.closed


def test_a_child_that_has_ended_is_left_alone() -> None:
    with child([sys.executable, "-c", "print('done')"], stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate()
    assert (out, process.returncode) == ("done\n", 0)
