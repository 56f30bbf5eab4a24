"""Every fenced Python block that a reader may copy runs as a script, as it stands, and uses public names only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import ROOT, name_of

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]


def _python_blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Each ```python block with the number of its first line."""
    start, block = 0, list[str]()
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if start and line.startswith("```"):
            yield start, "\n".join(block)
            start, block = 0, []
        elif start:
            block.append(line)
        elif line.strip() == "```python":
            start = number + 1


BLOCKS = [
    pytest.param(page, line, code, id=f"{name_of(page)}:{line}")
    for page in PAGES
    for line, code in _python_blocks(page)
]


@pytest.mark.parametrize(("page", "line", "code"), BLOCKS)
def test_a_block_runs(page: Path, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "\n" * (line - 1) + code  # so that a traceback points into the page
    exec(compile(source, str(page), "exec"), {"__name__": "__main__"})


PUBLIC = re.compile(r"meshbus(\.(sync|edge|edge\.sync|spark|testing\.\w+))?")
"""The modules that guides may import from."""


@pytest.mark.parametrize(("page", "line", "code"), BLOCKS)
def test_a_block_imports_from_public_modules(page: Path, line: int, code: str) -> None:
    tree = ast.parse(code)
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    private = [name for name in modules if name.split(".")[0] == "meshbus" and not PUBLIC.fullmatch(name)]
    assert not private, f"{name_of(page)}:{line} imports from {', '.join(private)}; make the names public in meshbus"
