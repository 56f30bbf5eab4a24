"""The counters of a node, with what each drop means."""

from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from meshbus.policy.reason import Reason
from tests.cli.conftest import Meshbus
from tests.cli.running import running


def test_the_counters_of_a_running_node_are_shown_with_their_meaning(meshbus: Meshbus, tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    create_psk(tmp_path / "other.key")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        'psk_file = "other.key"\nephemeral = true\nhandshake_timeout_s = 0.2\nhandshake_attempts = 1\n', "utf-8"
    )
    with running(tmp_path / "a") as node:
        way = ["--config", wrong, "--connect", node.address, "--public-key", node.public_key]
        assert meshbus("peers", *way).code == Exit.UNREACHABLE
        rows = {row["counter"]: row for row in meshbus("counters", "--admin", node.admin).rows}
        assert rows["drop.handshake_unverified"]["count"] == 1
        assert rows["drop.handshake_unverified"]["meaning"] == Reason.HANDSHAKE_UNVERIFIED.sentence
        assert rows["sent.events"]["count"] == 0
        stranger = tmp_path / "stranger.toml"
        stranger.write_text(wrong.read_text("utf-8").replace("other.key", "mesh.key"), "utf-8")
        result = meshbus("counters", "--config", stranger, "--connect", node.address, "--public-key", node.public_key)
        assert result.code == Exit.OK


def test_a_terminal_shows_a_table_of_counters(meshbus: Meshbus, tmp_path: Path, terminal: None) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as node:
        assert "sent.bytes" in meshbus("counters", "--admin", node.admin).out


@pytest.mark.parametrize("socket", ["nowhere.sock"])
def test_without_a_node_the_error_is_one_line(meshbus: Meshbus, home: Path, socket: str) -> None:
    result = meshbus("counters", "--admin", home / socket)
    assert (result.code, result.out) == (Exit.UNREACHABLE, "")
    assert "start a node with `meshbus up`" in result.err
