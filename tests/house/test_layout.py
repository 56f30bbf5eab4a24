"""One module, one idea, one test file; the core stays pure; numba stays behind its door."""

import pytest

from tests.house.tree import PACKAGE, imports, is_only_a_face, modules, name_of, own_test_of

CORE = ["names", "wire", "policy", "engine", "compute", "edge/zmtp"]
IMPURE = {
    "asyncio", "datetime", "logging", "os", "pathlib", "random", "secrets", "socket", "threading", "time",
}  # fmt: skip


def test_every_module_has_its_own_test_file() -> None:
    missing = {
        name_of(module): name_of(mirror)
        for module in modules()
        if not is_only_a_face(module) and not (mirror := own_test_of(module)).is_file()
    }
    assert not missing, "modules without a test file: " + ", ".join(f"{m} needs {t}" for m, t in missing.items())


@pytest.mark.parametrize("room", CORE)
def test_the_core_reads_no_clock_and_does_no_io(room: str) -> None:
    found = [
        f"{name_of(module)}:{line} imports {name}"
        for module in sorted((PACKAGE / room).rglob("*.py"))
        for line, name in imports(module)
        if name.partition(".")[0] in IMPURE
    ]
    assert not found, (
        f"{found}: in {room} time and randomness are arguments (now, entropy), and bytes come from the caller"
    )


def test_only_jit_names_numba() -> None:
    found = [
        f"{name_of(module)}:{line}"
        for module in modules()
        if module != PACKAGE / "jit.py"
        for line, name in imports(module)
        if name.partition(".")[0] in {"numba", "llvmlite"}
    ]
    assert not found, f"{found}: use meshbus.jit, which also works where numba is not installed"
