"""Where things are in this repository, for the house tests."""

import ast
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "meshbus"
NOT_SOURCE = {".git", ".venv", "env", "__pycache__", "build", "dist", ".hypothesis"}


def modules() -> list[Path]:
    """Every Python file of the package, in order."""
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The path as people say it: relative to the repository, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


def own_test_of(module: Path) -> Path:
    """Return the file that tests a module, whether it exists or not."""
    inside = module.relative_to(PACKAGE)
    return ROOT / "tests" / inside.parent / f"test_{inside.stem.strip('_')}.py"


def is_only_a_face(module: Path) -> bool:
    """Return whether a file is an `__init__` without code of its own; the package's own is tested in test_face."""
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


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every (line, dotted name) that a file imports, at any depth: `from a import b` gives both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def committed_files() -> list[Path]:
    """What git tracks or would track; without git, every file that is not obviously generated."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists() and shutil.which("git"):
        answer = subprocess.run(asked, cwd=ROOT, capture_output=True, check=False)
        if answer.returncode == 0:
            names = answer.stdout.decode("utf-8").split("\0")
            return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return list(_walk())


def _walk() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_SOURCE and not name.endswith(("_cache", ".egg-info"))]
        yield from (Path(folder) / name for name in files)
