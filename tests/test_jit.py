"""The door to numba: references without it, compiled loops with it, helpers and memory access inside loops."""

import asyncio
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from meshbus import beside, jit
from tests.patience import PATIENCE_S

compiled = pytest.mark.skipif(not jit.available(), reason="numba is not installed, or switched off")


@pytest.fixture(scope="module")
def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile in earnest, whatever earlier runs left on disk."""
    from numba.core import config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "CACHE_DIR", str(tmp_path_factory.mktemp("numba")))
        yield


# Text has no file that a cache could lie beside, so compiling this is also the case without a place for a cache.
PROGRAM = """
import sys
import meshbus.jit as jit
loaded_early = "numba" in sys.modules or "numpy" in sys.modules

@jit.kernel(lambda x: "reference")
def answer(x):
    return "loop"

print(jit.available(), loaded_early, answer.run(1), "numba" in sys.modules)
"""


def run_program(switch: str) -> str:
    environment = {**os.environ, "MESHBUS_JIT": switch}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_switched_off_the_reference_runs_and_numba_is_not_loaded() -> None:
    assert run_program("0") == "False False reference False"


@compiled
def test_switched_on_the_loop_runs_and_numba_is_loaded_only_then() -> None:
    assert run_program("1") == "True False loop True"


@jit.helper
def double(value: int) -> int:
    return 2 * value


def add_doubles_plain(values: NDArray[np.int64]) -> int:
    return int(2 * values.sum())


@jit.kernel(add_doubles_plain)
def add_doubles(values: NDArray[np.int64]) -> int:
    total = 0
    for value in values:
        total += double(value)
    return total


@compiled
@pytest.mark.usefixtures("empty_cache")
def test_a_kernel_is_compiled_on_its_first_call_and_calls_helpers() -> None:
    values = np.arange(100)
    assert add_doubles.run(values) == add_doubles.reference(values) == 9900
    assert type(add_doubles.run).__module__.startswith("numba")
    assert add_doubles.run(values) == 9900


def test_without_numba_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    kernel = jit.Kernel(add_doubles_plain, add_doubles.loop)
    assert not jit.available()
    assert kernel.run(np.arange(3)) == 6
    assert kernel.run is add_doubles_plain


def test_a_helper_stays_a_plain_function() -> None:
    assert double(21) == 42


def copy_plain(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    target[: len(source)] = source


@jit.kernel(copy_plain)
def copy(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    jit.copy_bytes(target.ctypes.data, source.ctypes.data, len(source))


@compiled
@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("size", [0, 1, 7, 64, 1000])
def test_copy_bytes_copies_exactly_so_many_bytes(size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.full(1010, 7, np.uint8)
    copy.run(target, source)
    assert target[:size].tolist() == source.tolist()
    assert set(target[size:].tolist()) == {7}


def move_words_plain(target: NDArray[np.uint8], source: NDArray[np.uint8], at: int) -> int:
    target[at : at + 4] = source[at : at + 4]
    return int.from_bytes(source[at : at + 8].tobytes(), "little")


@jit.kernel(move_words_plain)
def move_words(target: NDArray[np.uint8], source: NDArray[np.uint8], at: int) -> int:
    address = source.ctypes.data + at
    jit.store_u32(target.ctypes.data + at, jit.load_u32(address))
    return jit.load_u64(address)


@compiled
@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("at", range(8))
def test_words_are_read_and_written_little_endian_at_any_address(at: int) -> None:
    source = np.arange(240, 256, dtype=np.uint8)[::-1].copy()
    targets = [np.full(16, 9, np.uint8) for _ in range(2)]
    assert move_words.run(targets[0], source, at) == move_words_plain(targets[1], source, at)
    assert targets[0].tolist() == targets[1].tolist()


def test_what_may_not_be_written_to_is_copied() -> None:
    mine, foreign = np.zeros(3, np.uint8), np.frombuffer(b"abc", np.uint8)
    assert jit.writable(mine) is mine
    copied = jit.writable(foreign)
    assert copied.flags.writeable
    assert copied.tobytes() == b"abc"


@compiled
def test_a_loop_without_a_file_is_compiled_in_memory() -> None:
    namespace: dict[str, Callable[[int], int]] = {}
    exec("def loop(x): return x + 1", namespace)
    assert jit.compile_loop(namespace["loop"])(1) == 2


@pytest.mark.parametrize(
    "access",
    [
        lambda: jit.copy_bytes(0, 0, 0),
        lambda: jit.load_u32(0),
        lambda: jit.load_u64(0),
        lambda: jit.store_u32(0, 0),
        lambda: jit.fold_crc(0, 0),
    ],
)
def test_memory_access_has_no_meaning_outside_a_loop(access: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="inside a compiled loop"):
        access()


def fold_plain(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    """Do what is said about `fold_crc` with numbers: polynomials over two elements, the highest power in the first bit."""
    for lane in range(0, 64, 16):
        halves = target[lane : lane + 16].view("<u8").tolist()
        moved = multiplied(halves[0], jit.FOLD_64[0]) ^ multiplied(halves[1], jit.FOLD_64[1])
        target[lane : lane + 16] = np.frombuffer(moved.to_bytes(16, "little"), np.uint8) ^ source[lane : lane + 16]


def multiplied(one: int, other: int) -> int:
    product = 0
    for bit in range(64):
        product ^= (one << bit) * (other >> bit & 1)
    return product


@jit.kernel(fold_plain)
def fold(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    jit.fold_crc(target.ctypes.data, source.ctypes.data)


def test_the_factors_of_the_folding_are_powers_of_x_modulo_the_polynomial() -> None:
    def reflected(number: int) -> int:
        return int(f"{number:032b}"[::-1], 2)

    def power(exponent: int) -> int:
        rest = 1
        for _ in range(exponent):
            rest = rest << 1 ^ (0x104C11DB7 if rest >> 31 else 0)
        return rest

    assert tuple(reflected(power(bits)) << 1 for bits in (512 + 32, 512 - 32)) == jit.FOLD_64


def test_folding_keeps_the_checksum() -> None:
    source = np.random.default_rng(1).integers(0, 256, 128, np.uint8)
    expected = zlib.crc32(source.tobytes(), 0xFFFFFFFF)
    target = source[:64].copy()
    fold_plain(target, source[64:])
    assert zlib.crc32(target.tobytes(), 0xFFFFFFFF) == expected


@compiled
@pytest.mark.skipif(not jit.can_fold(), reason="the processor cannot multiply without carries")
@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("at", [0, 1, 8])
def test_the_compiled_folding_is_the_plain_one(at: int) -> None:
    source = np.random.default_rng(at).integers(0, 256, 200, np.uint8)
    targets = [source[100 + at : 164 + at].copy() for _ in range(2)]
    fold_plain(targets[0], source[at : at + 64])
    fold.run(targets[1], source[at : at + 64].copy())
    assert targets[1].tolist() == targets[0].tolist()


@pytest.mark.parametrize("name", ["NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"])
def test_nothing_is_folded_where_numba_compiles_for_another_processor(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "generic")
    assert not jit._multiplies_without_carries.__wrapped__()


@pytest.mark.parametrize(("machine", "flags"), [("aarch64", "flags: pclmulqdq sse"), ("x86_64", "flags: sse sse2")])
def test_nothing_is_folded_on_a_processor_that_cannot(
    machine: str, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: flags)
    assert not jit._multiplies_without_carries.__wrapped__()


def test_nothing_is_folded_on_a_system_that_does_not_say_what_its_processor_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("pathlib.Path.read_text", missing)
    assert not jit._multiplies_without_carries.__wrapped__()


# ── beside a loop ───────────────────────────────────────────────────────────────────────────


def first_plain(values: NDArray[np.int64]) -> int:
    return int(values[0])


def first_loop(values: NDArray[np.int64]) -> int:
    return values[0]  # type: ignore[no-any-return]


@compiled
async def test_on_a_loop_the_reference_serves_until_the_kernel_is_loaded_beside_it() -> None:
    kernel, threads = jit.Kernel(first_plain, first_loop), list[int]()
    served: list[Callable[..., int]] = []

    def reference(values: NDArray[np.int64]) -> int:
        served.append(reference)
        threads.append(threading.get_ident())
        return first_plain(values)

    kernel.reference = reference
    values, fixed = np.arange(5, 8), np.frombuffer(np.arange(6, 9).tobytes(), np.int64)
    for _ in range(jit.WORTH_LOADING):
        assert kernel.run(values) == 5
    served.clear()
    assert beside.wait(PATIENCE_S)
    assert kernel.run(values) == 5
    assert not served, "the compiled loop runs now"
    assert kernel.run(fixed) == kernel.run(fixed) == 6
    assert len(served) == 2, "a read-only array is another type"
    assert beside.wait(PATIENCE_S)
    assert kernel.run(fixed) == kernel.run(values) + 1 == 6
    assert len(served) == 2
    assert set(threads) == {threading.get_ident()}


def asserted(claim: bool) -> None:
    assert claim


@compiled
async def test_other_threads_wait_for_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "WORTH_LOADING", 1)
    kernel = jit.Kernel(first_plain, first_loop)
    kernel.reference = first_loop
    go = threading.Event()
    beside.run(lambda: asserted(go.wait(PATIENCE_S)))  # keeps the loader busy
    assert kernel.run(np.arange(3)) == 0
    assert await asyncio.to_thread(kernel.run, np.arange(4, 6)) == 4
    go.set()
    assert beside.wait(PATIENCE_S)
    assert type(kernel.run).__module__.startswith("numba")


def broken_loop(values: NDArray[np.int64]) -> int:
    return values.no_such_attribute  # type: ignore[attr-defined,no-any-return]


@compiled
async def test_what_cannot_be_compiled_is_reported_once_and_the_reference_stays(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "WORTH_LOADING", 1)
    kernel = jit.Kernel(first_plain, broken_loop)
    for _ in range(3):
        assert kernel.run(np.arange(2, 4)) == 2
        assert beside.wait(PATIENCE_S)
    assert [record.message for record in caplog.records] == [
        "broken_loop cannot be compiled; please report this as a bug"
    ]
    assert kernel.run is first_plain
