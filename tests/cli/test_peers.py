"""Peers are shown as a table to people, and as lines to programs."""

from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from tests.cli.conftest import Meshbus
from tests.cli.running import running


def test_a_node_with_and_without_peers(meshbus: Meshbus, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as first:
        alone = meshbus("peers", "--admin", first.admin)
        assert (alone.code, alone.out, alone.err) == (Exit.OK, "", "")
        peer = f'[[peers]]\naddress = "{first.address}"\npublic_key = "{first.public_key}"\n'
        with running(tmp_path / "b", f'tags = ["role:planner"]\n{peer}') as second:
            first.notice("announced")
            row = meshbus("peers", "--admin", first.admin).row
            assert row["node_id"] == second.status["node_id"]
            assert (row["health"], row["path"], row["nat"]) == ("alive", "direct", "unknown")
            assert "role:planner" in row["tags"]
            request.getfixturevalue("terminal")
            shown = meshbus("peers", "--admin", first.admin)
            assert "node id" in shown.out
            assert second.status["node_id"] in shown.out
            assert "{" not in shown.out
