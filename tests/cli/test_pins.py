"""`meshbus pins` as users run it: with a node that runs, and with one that does not."""

from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from meshbus.names.identity import Identity
from meshbus.node.peers.pinfile import load_pins, save_pins
from tests.cli.conftest import Meshbus
from tests.cli.running import running, until

ALICE, BOB = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
def config(home: Path) -> Path:
    (home / "node.toml").write_text('identity = "id.toml"\nadmin_socket = ""\n')
    save_pins(home / "id.pins.toml", {who.node_id: who.entity_id for who in (ALICE, BOB)})
    return home / "node.toml"


def test_the_pins_of_a_node_that_does_not_run_are_listed_and_removed(config: Path, meshbus: Meshbus) -> None:
    rows = meshbus("pins", "ls", "--config", config).rows
    assert {row["public_key"] for row in rows} == {ALICE.entity_id.hex(), BOB.entity_id.hex()}
    removed = meshbus("pins", "reset", f"{ALICE.node_id:016x}", "--config", config)
    assert (removed.code, removed.err.strip()) == (0, "meshbus: removed 1 pin")
    assert load_pins(config.with_name("id.pins.toml")) == {BOB.node_id: BOB.entity_id}
    assert meshbus("pins", "reset", "--all", "--config", config).code == 0
    assert meshbus("pins", "ls", "--config", config).rows == []


@pytest.mark.parametrize("arguments", [(), ("0123456789abcdef", "--all"), ("0123456789abcdef",), ("nobody",)])
def test_a_pin_that_is_not_there_or_not_named_is_an_error(
    config: Path, meshbus: Meshbus, arguments: tuple[str]
) -> None:
    result = meshbus("pins", "reset", *arguments, "--config", config)
    assert result.code == Exit.USAGE
    assert "pins ls" in result.err
    assert len(load_pins(config.with_name("id.pins.toml"))) == 2


def test_an_ephemeral_node_has_no_pins(home: Path, meshbus: Meshbus) -> None:
    (home / "node.toml").write_text('ephemeral = true\nadmin_socket = ""\n')
    result = meshbus("pins", "ls", "--config", home / "node.toml")
    assert result.code == Exit.USAGE
    assert "ephemeral" in result.err


def test_nodes_that_run_pin_each_other_and_forget_on_request(tmp_path: Path, meshbus: Meshbus) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "east", 'name = "east"\n') as east:
        peer = f'[[peers]]\naddress = "{east.address}"\npublic_key = "{east.public_key}"\n'
        with running(tmp_path / "west", f'name = "west"\n{peer}') as west:
            (row,) = until(lambda: meshbus("pins", "ls", "--admin", west.admin).rows, len)
            assert (row["name"], row["public_key"]) == ("east", east.public_key)
            assert [peer["secure"] for peer in meshbus("peers", "--admin", west.admin).rows] == [True]
            path = tmp_path / "west" / "id.pins.toml"
            until(lambda: path.exists() and load_pins(path), bool)
            assert meshbus("pins", "reset", "east", "--admin", west.admin).err.strip() == "meshbus: removed 1 pin"
            until(lambda: load_pins(path), lambda pins: not pins)
            assert meshbus("pins", "reset", "east", "--admin", west.admin).code == Exit.USAGE
