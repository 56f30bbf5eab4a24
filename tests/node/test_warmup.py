"""Warming up loads every kernel of the packet path, once."""

import subprocess
import sys

from meshbus.node.warmup import warm

PROGRAM = """
from meshbus.engine import survey
from meshbus.policy import columns, transit, verdict
from meshbus.wire import frames
from meshbus.node.warmup import warm
kernels = [frames._pack, frames._unpack, frames._measure, columns._read, survey._survey]
kernels += [transit._read, transit._count, transit._stretch, transit._alike, verdict.judge]
before = [kernel.run for kernel in kernels]
warm()
assert all(kernel.run != old for kernel, old in zip(kernels, before)), "a kernel is still cold"
"""


def test_after_it_no_kernel_is_cold() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_twice_is_fine() -> None:
    warm()
    warm()
