"""The command line of the benchmarks."""

import argparse
from pathlib import Path

import pytest

from bench import bench_funnel, bench_import
from bench.__main__ import bench_names, own_options
from tests.house.tree import ROOT


def test_every_benchmark_file_can_be_named() -> None:
    assert {"daemons", "funnel", "spark", "log"} <= set(bench_names())


def test_a_benchmark_gets_its_own_options() -> None:
    options = own_options(bench_funnel, ["--events", "0.5,2", "--json", "0", "--seconds", "7", "--before", str(ROOT)])
    assert options == argparse.Namespace(
        events=[500_000, 2_000_000],
        json=[],
        seconds=7.0,
        samples=None,
        published=False,
        master=None,
        slope=False,
        workers=None,
        before=ROOT / "src",
    )


def test_a_tree_without_meshbus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        own_options(bench_funnel, ["--before", str(tmp_path)])
    assert "has no src/meshbus; make one with git archive COMMIT" in capsys.readouterr().err


def test_an_option_that_a_benchmark_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        own_options(bench_import, ["--events", "1"])
    assert "unrecognized arguments: --events 1" in capsys.readouterr().err
