"""Compilation of hot loops with numba, and the fallback without it. No other file imports numba.

A hot function exists twice: a *reference* in plain Python or numpy, which tests compare against and which is the
fallback, and a *loop* that numba compiles. `kernel` joins the two:

    @kernel(_check_numpy)
    def _check(...): ...

    _check.run(...)               # compiled on the first call; later processes load it from a cache

Without numba, or with MESHBUS_JIT=0 in the environment, the reference runs instead. Importing this file loads neither
numba nor numpy.

Loading takes from milliseconds to seconds, once for each kernel and each combination of argument types. An event loop must
not wait for that. So a call on the thread of a loop never loads anything: a kernel that is missing is loaded in another
thread (meshbus/beside.py), and the reference serves until it is there. Calls on other threads wait. A process that hardly
uses kernels never loads numba, which takes 120 MB.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from meshbus import beside

if TYPE_CHECKING:
    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound="NDArray[Any]")

_COMPILED_ONLY = "this function works only inside a compiled loop; call it from a function decorated with @kernel"

WORTH_LOADING = 16
"""Calls on a loop after which a kernel is loaded. Our choice: more than connecting and a few small batches need."""

FOLD_64 = 0x154442BD4, 0x1C6E41596
"""What the two halves of 16 bytes are multiplied by to move them by 64 bytes: x^544 and x^480 modulo the polynomial of CRC-32,
with the bits in its order."""

_FAILED = "%s cannot be compiled; please report this as a bug"

_logger = logging.getLogger("meshbus.jit")

KERNELS: list[Kernel[..., Any]] = []
"""Every kernel of the modules that are imported."""

_teaching = threading.Lock()

_helpers: list[Callable[..., Any]] = []
"""Functions that loops call and that are not registered with numba yet."""


def available() -> bool:
    """Return whether loops are compiled: numba is installed and MESHBUS_JIT is not 0."""
    return os.environ.get("MESHBUS_JIT", "1") != "0" and importlib.util.find_spec("numba") is not None


class Kernel(Generic[P, R]):
    """A function with a reference and a compiled form; `run` calls the compiled form where numba is available.

    `run` is an attribute rather than a method, so that a hot call has no wrapper.
    """

    __slots__ = ("_calls", "_wanted", "loop", "reference", "run")

    def __init__(self, reference: Callable[P, R], loop: Callable[P, R]) -> None:
        self.reference = reference
        self.loop = loop
        self.run: Callable[P, R] = self._resolve
        self._calls = 0
        """Calls on a loop before it was worth loading."""
        self._wanted: set[object] = set()
        """Argument types that were given to the loader, those that cannot be compiled among them."""
        KERNELS.append(self)

    def _resolve(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # Replaces itself: later calls go to the compiled function without passing here.
        if not available():
            self.run = self.reference
        elif beside.on_loop():
            self._calls += 1
            if self._calls < WORTH_LOADING:
                return self.reference(*args, **kwargs)
            self.run = self._meanwhile
            beside.run(lambda: self._load(args))
        else:
            self.run = self._compiled()
        return self.run(*args, **kwargs)

    def _meanwhile(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Stand in for a kernel that is being loaded."""
        if not beside.on_loop():
            self.run = self._compiled()
            return self.run(*args, **kwargs)
        return self.reference(*args, **kwargs)

    def _load(self, args: tuple[Any, ...]) -> None:
        """Load the kernel for arguments like these, and use it from now on; called beside the loop."""
        try:
            compiled: Any = self._compiled()
            compiled.compile(tuple(map(compiled.typeof_pyval, args)))
        except Exception:  # the reference goes on serving
            _logger.exception(_FAILED, self.loop.__qualname__)
            self.run = self.reference
        else:
            self.run = compiled

    def _load_for(self, compiled: Any, types: tuple[Any, ...]) -> None:
        """Load a kernel that is in use for further argument types; called beside the loop."""
        try:
            compiled.compile(types)
        except Exception:  # the reference goes on serving, and `_wanted` keeps it from being tried again
            _logger.exception(_FAILED, self.loop.__qualname__)

    def _compiled(self) -> Callable[P, R]:
        compiled: Any = compile_loop(self.loop)
        compile_now = compiled._compile_for_args  # numba has no public hook for missing types

        def choose(*args: Any) -> Any:
            # numba calls this for arguments of types that it has no code for, and then what this returns.
            if not beside.on_loop():
                return compile_now(*args)
            types = tuple(map(compiled.typeof_pyval, args))
            if types not in self._wanted:
                self._wanted.add(types)
                beside.run(lambda: self._load_for(compiled, types))
            return self.reference

        compiled._compile_for_args = choose
        return cast("Callable[P, R]", compiled)


def kernel(reference: Callable[P, R]) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Decorate a loop with its reference, which must return the same results."""

    def tie(loop: Callable[P, R]) -> Kernel[P, R]:
        return Kernel(reference, loop)

    return tie


def helper(function: F) -> F:
    """Mark a function that compiled loops call; for other callers it stays plain Python."""
    _helpers.append(function)
    return function


def copy_bytes(target: int, source: int, length: int) -> None:
    """Copy bytes between two addresses with memcpy; works only inside a compiled loop.

    An element-by-element loop in numba is ten to thirty times slower than memcpy.
    """
    raise RuntimeError(_COMPILED_ONLY)


def load_u32(address: int) -> int:
    """Read a little-endian u32 at any address, aligned or not; works only inside a compiled loop."""
    raise RuntimeError(_COMPILED_ONLY)


def load_u64(address: int) -> int:
    """Read a little-endian u64 at any address, aligned or not; works only inside a compiled loop."""
    raise RuntimeError(_COMPILED_ONLY)


def store_u32(address: int, value: int) -> None:
    """Write a little-endian u32 at any address, aligned or not; works only inside a compiled loop."""
    raise RuntimeError(_COMPILED_ONLY)


def fold_crc(target: int, source: int) -> None:
    """Replace 64 bytes by others, so that their CRC-32 is that of the old ones with 64 more behind them.

    The register of the CRC must start with 0. Works only inside a compiled loop, and if `can_fold` says so.
    """
    raise RuntimeError(_COMPILED_ONLY)


def can_fold() -> bool:
    """Return whether loops with `fold_crc` can be compiled."""
    return available() and _multiplies_without_carries()


@functools.cache
def _multiplies_without_carries() -> bool:
    """Return whether the processor has the instruction for it, and numba compiles for this processor."""
    # Numba is not asked, because importing it takes long, and where this cannot tell, there is another way.
    told_otherwise = {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"} & set(os.environ)
    if platform.machine() not in {"x86_64", "AMD64"} or told_otherwise:
        return False
    try:
        return " pclmulqdq " in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return False


def writable(array: A) -> A:
    """Return the array, or a copy if it is read-only: numba compiles a loop again for a read-only array."""
    return array if array.flags.writeable else array.copy()


def compile_loop(loop: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop, using the on-disk cache if its directory is writable."""
    import numba

    with _teaching:
        _teach()
    # error_model="numpy": no check for division by zero, which would keep loops from being vectorized.
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return cast("Callable[P, R]", numba.njit(cache=True, **options)(loop))
    except RuntimeError:  # the cache directory is not writable: compile in memory
        return cast("Callable[P, R]", numba.njit(**options)(loop))


def _teach() -> None:
    """Register the helpers and the memory functions with numba, each once."""
    from numba.extending import register_jitable

    while _helpers:
        function = _helpers.pop()
        if function is copy_bytes:  # stands for all functions on addresses; see the end of this module
            _teach_memory()
        else:
            register_jitable(function)


def _teach_memory() -> None:
    """Register the compiled form of the functions that work on addresses."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic, overload

    # align=1 below: addresses inside a packet are not aligned, and LLVM would otherwise assume that they are.
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

    @intrinsic  # type: ignore[untyped-decorator]
    def fold(_typing: Any, target: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pair = ir.VectorType(ir.IntType(64), 2)
            made = ir.FunctionType(pair, (pair, pair, ir.IntType(8)))
            multiply = cgutils.get_or_insert_function(builder.module, made, "llvm.x86.pclmulqdq")
            factors = ir.Constant(pair, list(FOLD_64))
            for lane in range(0, 64, 16):
                places = [builder.add(address, ir.Constant(address.type, lane)) for address in arguments]
                to, taken = (builder.inttoptr(place, pair.as_pointer()) for place in places)
                old, new = builder.load(to, align=1), builder.load(taken, align=1)
                # Which half of each operand is multiplied: the first of both, and the second of both.
                for halves in (0x00, 0x11):
                    new = builder.xor(new, builder.call(multiply, (old, factors, ir.Constant(ir.IntType(8), halves))))
                builder.store(new, to, align=1)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp), generate

    overload(copy_bytes)(lambda target, source, length: lambda target, source, length: copy(target, source, length))
    overload(load_u32)(lambda address: lambda address: load_32(address))
    overload(load_u64)(lambda address: lambda address: load_64(address))
    overload(store_u32)(lambda address, value: lambda address, value: store(address, value))
    overload(fold_crc)(lambda target, source: lambda target, source: fold(target, source))


_helpers.append(copy_bytes)
