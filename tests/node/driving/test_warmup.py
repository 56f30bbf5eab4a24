"""Warming up loads every kernel of the packet path, once."""

import subprocess
import sys

from meshbus.node.driving.warmup import warm

PROGRAM = """
from meshbus.engine.base import runscan
from meshbus.policy import verdict
from meshbus.wire import frames, headerbatch, routebatch
from meshbus.node.driving.warmup import warm
kernels = [frames._pack, frames._unpack, frames._measure, headerbatch._read, runscan._scan]
kernels += [routebatch._read, routebatch._count, routebatch._stretch, routebatch._alike, verdict.judge]
before = [kernel.run for kernel in kernels]
warm()
assert all(kernel.run != old for kernel, old in zip(kernels, before)), "a kernel is still cold"
"""


def test_every_kernel_is_compiled_after_warmup() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_warming_up_twice_is_allowed() -> None:
    warm()
    warm()
