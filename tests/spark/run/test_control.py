"""Other processes see what a runner does, and ask it to stop."""

import errno
import threading
from pathlib import Path

import pytest

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.run.control import clear_stop, exclusive, status, stop, stop_requested, write_status


def test_a_runner_that_is_gone_is_called_dead(tmp_path: Path) -> None:
    (tmp_path / "_status.json").write_text('{"state":"running","queries":[]}')
    assert status(tmp_path)["state"] == "dead"
    with exclusive(tmp_path):
        assert status(tmp_path)["state"] == "running"


def test_without_a_run_there_is_no_status(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no pipeline has run on"):
        status(tmp_path)


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_status(tmp_path, {"state": "stopped", "pid": 1, "queries": []})
    assert status(tmp_path) == {"state": "stopped", "pid": 1, "queries": []}
    assert [path.name for path in tmp_path.iterdir()] == ["_status.json"]


def test_a_full_disk_does_not_hide_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_status(tmp_path, {"state": "stopped", "queries": [], "problem": "none, and a long text that is replaced"})

    def full(path: Path, _: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    write_status(tmp_path, {"state": "stopped", "queries": [], "problem": "no space"})
    assert status(tmp_path) == {"state": "stopped", "queries": [], "problem": "no space"}
    assert [path.name for path in tmp_path.iterdir()] == ["_status.json"]


def test_one_process_at_a_time_holds_the_tables(tmp_path: Path) -> None:
    with exclusive(tmp_path / "tables"):
        with pytest.raises(PipelineError, match="already running on") as caught, exclusive(tmp_path / "tables"):
            pass
        assert caught.value.fault is PipelineFault.RUNNING
    with exclusive(tmp_path / "tables"):
        pass


def test_a_directory_that_cannot_be_written_is_named() -> None:
    with pytest.raises(PipelineError, match="cannot write to /proc/none"), exclusive(Path("/proc/none")):
        pass


def test_stopping_waits_for_the_runner(tmp_path: Path) -> None:
    assert not stop(tmp_path)
    held = threading.Event()

    def runner() -> None:
        with exclusive(tmp_path):
            held.set()
            while not stop_requested(tmp_path):
                pass
            clear_stop(tmp_path)

    thread = threading.Thread(target=runner)
    thread.start()
    held.wait()
    assert stop(tmp_path)
    thread.join()
    assert not stop_requested(tmp_path)


def test_a_runner_that_does_not_stop_in_time_is_an_error(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(PipelineError, match="still running a batch after 0 s") as caught:
        stop(tmp_path, timeout_s=0.0)
    assert caught.value.fault is PipelineFault.RUNNING
