"""One module, one idea, one test file; the core stays pure; numba stays behind its door."""

import ast
from pathlib import Path

import pytest

from tests.house.tree import PACKAGE, ROOT, imports, modules, name_of

CORE = ["names", "wire", "policy", "engine", "compute", "edge/zmtp"]
IMPURE = {
    "asyncio", "datetime", "logging", "os", "pathlib", "random", "secrets", "socket", "threading", "time",
}  # fmt: skip


def test_every_module_has_its_own_test_file() -> None:
    missing = {
        name_of(module): name_of(mirror)
        for module in modules()
        if not _is_only_a_face(module) and not (mirror := _mirror(module)).is_file()
    }
    assert not missing, "modules without a test file: " + ", ".join(f"{m} needs {t}" for m, t in missing.items())


def _mirror(module: Path) -> Path:
    inside = module.relative_to(PACKAGE)
    return ROOT / "tests" / inside.parent / f"test_{inside.stem.strip('_')}.py"


def _is_only_a_face(module: Path) -> bool:
    """An `__init__` of docstring, imports and `__all__` has nothing to test; the package's own is in test_face."""
    if module.name != "__init__.py":
        return False
    if module.parent == PACKAGE:
        return True
    return all(_says_nothing(statement) for statement in ast.parse(module.read_text("utf-8")).body)


def _says_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


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
