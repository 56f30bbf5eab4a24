"""Asking a running node: over its socket, with its errors as they are; and how nodes are called."""

from pathlib import Path

import pytest

from meshbus.cli.asking import ask, called


def test_a_node_that_does_not_run_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="start a node with `meshbus up`"):
        ask(tmp_path / "nobody.sock", None, "status")


def test_a_node_is_called_by_its_name_or_its_id() -> None:
    assert called({"name": "east", "node_id": "00ff"}) == "east"
    assert called({"name": None, "node_id": "00ff"}) == "00ff"
