"""The command line of the benchmarks."""

import argparse

import pytest

from bench import bench_funnel, bench_import
from bench.__main__ import bench_names, own_options


def test_every_benchmark_file_can_be_named() -> None:
    assert {"daemons", "funnel", "spark", "log"} <= set(bench_names())


def test_a_benchmark_gets_its_own_options() -> None:
    options = own_options(bench_funnel, ["--events", "0.5,2", "--json", "0", "--seconds", "7"])
    assert options == argparse.Namespace(
        events=[500_000, 2_000_000], json=[], seconds=7.0, samples=None, published=False, master=None, slope=False
    )


def test_an_option_that_a_benchmark_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        own_options(bench_import, ["--events", "1"])
    assert "unrecognized arguments: --events 1" in capsys.readouterr().err
