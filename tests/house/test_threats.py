"""Every line of the threat model in SECURITY.md points at tests that exist, and every attacker is in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.tree import ROOT

PAGE = ROOT / "SECURITY.md"
ATTACKERS = (
    "network", "holder of the mesh key", "relay", "subscriber", "publisher", "local user", "poisoned log file",
    "revoked node",
)  # fmt: skip
NOTHING = "–"
_POINTER = re.compile(r"`(tests/[\w/.]+)?(?:::(\w+))?`")


def section(title: str) -> str:
    """Return the text under a heading."""
    return PAGE.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def lines_of(title: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its first two lines."""
    table = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[2:]]


def pointers(text: str) -> Iterator[tuple[str, str]]:
    """Return the tests that a text points at: the file, and the name of a test or nothing."""
    file = ""
    for found in _POINTER.finditer(text):
        file = found[1] or file
        if found[1] or found[2]:
            yield file, found[2] or ""


def test_every_attacker_is_in_the_threat_model() -> None:
    found = " ".join(line[0] for line in lines_of("Threat model"))
    assert [who for who in ATTACKERS if f"**{who}**" not in found] == []


def test_every_line_points_at_a_test_or_says_that_nothing_prevents_it() -> None:
    for who, can, cannot, shown in lines_of("Threat model"):
        if cannot == shown == NOTHING:
            assert can.endswith("**Not prevented**"), who
        else:
            assert list(pointers(shown)), f"{who}: {cannot}"


@pytest.mark.parametrize(("file", "name"), sorted(set(pointers(PAGE.read_text("utf-8")))))
def test_a_test_that_the_page_points_at_exists(file: str, name: str) -> None:
    place = ROOT / file
    assert place.exists(), file
    if name:
        tree = ast.parse(place.read_text("utf-8"))
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in tests, f"{file} has no {name}"
