"""Write docs/limits.md: what others can make a node remember, and how much of it, from the tuples `BOUNDS` in the source.

    python -m tools.limits

A test holds the page to this program, and another one attacks every row.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import meshbus
from meshbus.policy.bound import Bound, By

PAGE = Path(__file__).parent.parent / "docs" / "limits.md"
ROOMS = ("engine", "compute", "policy", "log", "node", "edge", "web")
"""The rooms that remember what others send. Spark reads what is on disk."""

_HEAD = """\
# Limits

Written from the tuples `BOUNDS` in `src/meshbus` by `python -m tools.limits`.

Everything that an outsider, a member, a peer, a publisher or a user can make a node remember has a bound. Each section says
who can make it grow. A bound of each peer holds beside the one of the node. The last column says how to see that a bound was
reached: a counter (`meshbus counters`), or what the caller gets. `forget.*` counts entries that made room for newer ones,
which loses no event. Beyond every bound, the cost of one more is constant, unless the table says what it depends on.
`tests/limits` attacks each row.
"""

_ABOUT = {
    By.OUTSIDER: "Anybody who can send a datagram to the node, or connect to an open ZeroMQ endpoint.",
    By.MEMBER: "A node with the mesh key. It can begin sessions under any number of node ids, and prove them.",
    By.PEER: "A node with a session, by what it sends.",
    By.PUBLISHER: "A peer whose events this node has subscribed to.",
    By.USER: "The application, or a local user who may use a socket of the node.",
}


class Row(NamedTuple):
    """A bound, and where it is enforced."""

    module: str
    bound: Bound


def rows() -> list[Row]:
    """Return every bound in the source, in the order of the modules."""
    return [Row(module, bound) for module in _modules() for bound in vars(import_module(module)).get("BOUNDS", ())]


def page() -> str:
    """Return the text of docs/limits.md."""
    parts = [_HEAD]
    for by in By:
        head = "| what | of a node | of each | beyond it | one more costs | seen by | where |\n|---|---|---|---|---|---|---|\n"
        body = "".join(_line(row) for row in rows() if row.bound.by is by)
        parts.append(f"\n## {by.value[0].upper()}{by.value[1:]}\n\n{_ABOUT[by]}\n\n{head}{body}")
    return "".join(parts)


def _line(row: Row) -> str:
    bound = row.bound
    each = "; ".join(f"{_number(most, _unit(what, bound))} per {what}" for what, most in bound.per.items())
    where = row.module.removeprefix("meshbus.").replace(".", "/")
    node = "" if bound.per_node is None else _number(bound.per_node, bound.unit)
    told = f"`{bound.told}`" if " " not in bound.told else bound.told
    return f"| {bound.what} | {node} | {each} | {bound.full} | {bound.cost} | {told} | `{where}.py` |\n"


def _unit(what: str, bound: Bound) -> str:
    # "stream, in packets" says itself what is counted.
    return "" if "," in what else bound.unit


def _number(most: int, unit: str) -> str:
    if unit == "bytes":
        size, word = next(
            (s, w) for s, w in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")) if most >= s
        )
        return f"{most // size} {word}"
    return f"{most:,}".replace(",", " ")


def _modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(meshbus.__path__, "meshbus."):
        if found.name.split(".")[1] in ROOMS:
            yield found.name


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
