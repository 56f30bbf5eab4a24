"""A pipeline loads the kernels of its first batch while it starts."""

from meshbus import beside, jit
from meshbus.spark.lake import jsoncheck
from meshbus.spark.run.kernels import load_kernels
from tests.patience import PATIENCE_S


def test_the_kernels_of_payloads_are_loaded_beside_the_start() -> None:
    load_kernels()
    assert beside.wait(PATIENCE_S)
    for kernel in (jsoncheck._check_text, jsoncheck._check_json):
        assert bool(getattr(kernel.run, "signatures", None)) == jit.available()
