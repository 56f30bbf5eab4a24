"""The only file that names numba.

A hot function exists twice: a *reference* in plain Python or numpy, which is the test oracle and the fallback, and a
*loop* that numba compiles. `kernel` ties the two together:

    @kernel(_check_numpy)
    def _check(...): ...

    _check.run(...)               # compiled on the first call, from a cache in later processes

Without numba, or with MESHBUS_JIT=0 in the environment, the reference runs instead. Importing this file loads neither
numba nor numpy.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound="NDArray[Any]")

_COMPILED_ONLY = "this function has a meaning only inside a compiled loop"

_helpers: list[Callable[..., Any]] = []
"""Functions that loops call and numba has not been told about yet."""


def available() -> bool:
    """Say whether loops are compiled here: numba is installed and MESHBUS_JIT is not 0."""
    return os.environ.get("MESHBUS_JIT", "1") != "0" and importlib.util.find_spec("numba") is not None


class Kernel(Generic[P, R]):
    """A function with a reference and a compiled form; `run` is whichever this machine has.

    `run` is an attribute rather than a method so that a hot call pays for no wrapper.
    """

    __slots__ = ("loop", "reference", "run")

    def __init__(self, reference: Callable[P, R], loop: Callable[P, R]) -> None:
        self.reference = reference
        self.loop = loop
        self.run: Callable[P, R] = self._resolve

    def _resolve(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self.run = compile_loop(self.loop) if available() else self.reference
        return self.run(*args, **kwargs)


def kernel(reference: Callable[P, R]) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Decorate a loop with the reference it must equal."""

    def tie(loop: Callable[P, R]) -> Kernel[P, R]:
        return Kernel(reference, loop)

    return tie


def helper(function: F) -> F:
    """Mark a function that loops call: it stays plain Python for everyone else."""
    _helpers.append(function)
    return function


def copy_bytes(target: int, source: int, length: int) -> None:
    """Copy bytes between two addresses; only inside a loop, where it is a memcpy.

    Element loops in numba are ten to thirty times slower than memcpy.
    """
    raise RuntimeError(_COMPILED_ONLY)


def load_u32(address: int) -> int:
    """Read a little-endian number at any address; only inside a loop."""
    raise RuntimeError(_COMPILED_ONLY)


def load_u64(address: int) -> int:
    """Read a little-endian number at any address; only inside a loop."""
    raise RuntimeError(_COMPILED_ONLY)


def store_u32(address: int, value: int) -> None:
    """Write a little-endian number at any address; only inside a loop."""
    raise RuntimeError(_COMPILED_ONLY)


def writable(array: A) -> A:
    """Give an array that may be written to: for one that may not, a loop would be compiled anew."""
    return array if array.flags.writeable else array.copy()


def compile_loop(loop: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop, from the on-disk cache where there is a place for one."""
    import numba

    _teach()
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return cast("Callable[P, R]", numba.njit(cache=True, **options)(loop))
    except RuntimeError:  # no writable place for the cache: compile in memory
        return cast("Callable[P, R]", numba.njit(**options)(loop))


def _teach() -> None:
    """Register the helpers and the memory intrinsics with numba, each once."""
    from numba.extending import register_jitable

    while _helpers:
        function = _helpers.pop()
        if function is copy_bytes:
            _teach_memory()
        else:
            register_jitable(function)


def _teach_memory() -> None:
    """Give the functions on addresses their compiled meaning."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic, overload

    def pointer_to(builder: Any, address: Any, bits: int) -> Any:
        return builder.inttoptr(address, ir.IntType(bits).as_pointer())

    def make_load(bits: int, result: Any) -> Any:
        @intrinsic  # type: ignore[untyped-decorator]
        def load(_typing: Any, address: Any) -> Any:
            def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
                return builder.load(pointer_to(builder, arguments[0], bits), align=1)

            return result(types.uintp), generate

        return load

    load_32, load_64 = make_load(32, types.uint32), make_load(64, types.uint64)

    @intrinsic  # type: ignore[untyped-decorator]
    def copy(_typing: Any, target: Any, source: Any, length: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            to, source_pointer = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
            cgutils.raw_memcpy(builder, to, source_pointer, arguments[2], 1)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp, types.intp), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], pointer_to(builder, arguments[0], 32), align=1)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uint32), generate

    overload(copy_bytes)(lambda target, source, length: lambda target, source, length: copy(target, source, length))
    overload(load_u32)(lambda address: lambda address: load_32(address))
    overload(load_u64)(lambda address: lambda address: load_64(address))
    overload(store_u32)(lambda address, value: lambda address, value: store(address, value))


_helpers.append(copy_bytes)
