"""What commands about a running node share: which node is asked, the question, and how a node is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter

Admin: TypeAlias = Annotated[
    Path | None, Parameter(help="Admin socket of a running node; default: the configured one.")
]


def ask(admin: Path | None, config: Path | None, do: str, **fields: object) -> Any:
    """Send one request to a running node and return the result. Raises Refusal if the node answers with an error."""
    import asyncio

    from meshbus.cli.reach import ask_node

    return asyncio.run(ask_node(admin, config, do, **fields))


def called(who: Mapping[str, Any]) -> str:
    """Return how people call a node: its name, or its id if it has none."""
    return str(who["name"] or who["node_id"])
