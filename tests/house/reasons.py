"""The reasons of policy/reason.py as a page, and where the source and the tests speak of them.

`python -m tests.house.reasons` writes docs/reasons.md.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from meshbus.policy.reason import Reason
from tests.house.tree import PACKAGE, ROOT

PAGE = ROOT / "docs" / "reasons.md"
ENUM = PACKAGE / "policy" / "reason.py"

_HEAD = """\
# Drop reasons

Everything that meshbus drops, refuses or leaves out has a reason, and every reason has a counter: `drop.bad_tag` is
`node.counters["drop"]["bad_tag"]`. Packet files and tables also carry a code; `meshbus packets cat --reason` filters by
it. This page is written from `src/meshbus/policy/reason.py` by `python -m tests.house.reasons`.

A ZeroMQ bridge or endpoint has counters of its own (`bridge.counters`, `pub.counters`). What the mesh refused to a
bridge is counted there by the word of the mesh: a reason below, or the code of an error ([errors.md](errors.md)).

## Recorded reasons

Packet files carry these codes in the column `reason`; 0 means that the packet was not dropped.

| code | reason | counter | why, and what to look at |
|---|---|---|---|
"""

_OTHERS = """
## Other reasons

| reason | counter | why, and what to look at |
|---|---|---|
"""


def page() -> str:
    """Return docs/reasons.md."""
    recorded = sorted((reason for reason in Reason if reason.code), key=lambda reason: reason.code)
    others = [reason for reason in Reason if not reason.code]
    rows = "".join(f"| {reason.code} | `{reason.word}` | {_counted(reason)}\n" for reason in recorded)
    return _HEAD + rows + _OTHERS + "".join(f"| `{reason.word}` | {_counted(reason)}\n" for reason in others)


def _counted(reason: Reason) -> str:
    return f"`{'.'.join(reason.counter)}` | {reason.sentence} |"


def used_in_source() -> set[str]:
    """Return the names of the reasons that the package uses."""
    return {
        name
        for path in PACKAGE.rglob("*.py")
        if path != ENUM
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for name in _members(node)
    }


def produced_by_tests() -> set[str]:
    """Return the names of the reasons that tests expect.

    A test names a reason as `Reason.X`, or by both words of its counter: as neighbors in a call or a tuple, or as outer
    and inner key. The second word alone is enough if no other reason has it and it is a compound one, because such a
    word appears for nothing else.
    """
    by_counter = {reason.counter: reason.name for reason in Reason}
    shared = Counter(reason.why for reason in Reason)
    by_word = {reason.why: reason.name for reason in Reason if shared[reason.why] == 1 and "_" in reason.why}
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path.parent.name == "house" or path == ROOT / "tests" / "policy" / "test_reason.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found.update(_members(node))
            found.update(by_counter[pair] for pair in _pairs(node) if pair in by_counter)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in by_word:
                found.add(by_word[node.value])
    return found


def _members(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="Reason" | "DropReason"), attr=name) if name in Reason.__members__:
            yield name


def _pairs(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the pairs of words that a piece of code may mean as a counter."""
    match node:
        case ast.Call(args=[ast.Constant(str(what)), ast.Constant(str(why)), *_]):
            yield what, why
        case ast.Tuple(elts=[ast.Constant(str(what)), ast.Constant(str(why))]):
            yield what, why
        case ast.Subscript(value=ast.Subscript(slice=ast.Constant(str(what))), slice=ast.Constant(str(why))):
            yield what, why
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(value, ast.Dict):
                    yield from product(_words([key]), _words(value.keys))
        case ast.Compare(left=ast.Subscript(slice=what), comparators=[ast.Dict(keys=keys)]):
            yield from product(_words([what]), _words(keys))


def _words(nodes: Sequence[ast.expr | None]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
