"""Run references in place of compiled loops, to compare the two."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def references(*kernels: Any) -> Iterator[None]:
    """Run the references of kernels."""
    before = [kernel.run for kernel in kernels]
    for kernel in kernels:
        kernel.run = kernel.reference
    try:
        yield
    finally:
        for kernel, run in zip(kernels, before, strict=True):
            kernel.run = run
