"""A new configuration: written with comments, valid as it stands, by asking or from options."""

import io
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.config import NodeConfig
from meshbus.names.identity import Identity
from tests.cli.conftest import Meshbus

KEY = Identity.generate(lambda size: bytes(range(size))).entity_id.hex()
OTHER = Identity.generate(lambda size: bytes(range(1, size + 1))).entity_id.hex()


def test_a_plain_configuration_is_valid_and_a_key_is_created(meshbus: Meshbus, home: Path) -> None:
    result = meshbus("new")
    assert result.row == {"config": "node.toml", "psk_file": str(home / "mesh.key"), "psk_created": True}
    assert "meshbus up node.toml" in result.err
    assert (home / "mesh.key").stat().st_mode & 0o777 == 0o600
    config = NodeConfig.load(home / "node.toml", {})
    assert (config.name, str(config.bind), config.peers, config.channels) == (None, "127.0.0.1:0", (), ())
    assert config.load_psk()
    assert meshbus("check", "node.toml").code == Exit.OK


def test_options_become_settings(meshbus: Meshbus, home: Path) -> None:
    meshbus("new")
    result = meshbus(
        *("new", "rover.toml", "--name", "west-rover", "--bind", "0.0.0.0:9000", "--subnet", "3.7"),
        *(
            "--peer",
            f"10.0.0.7:9000={KEY}",
            "--peer",
            f"hub.local:9000={OTHER}",
            "--log",
            "sensors/",
            "--log",
            "alarms/",
        ),
    )
    assert result.row["psk_created"] is False
    config = NodeConfig.load(home / "rover.toml", {})
    assert (config.name, str(config.bind), str(config.subnet)) == ("west-rover", "0.0.0.0:9000", "3.7")
    assert [str(peer.address) for peer in config.peers] == ["10.0.0.7:9000", "hub.local:9000"]
    assert [entry.prefix for entry in config.channels] == ["sensors/", "alarms/"]
    assert config.log_dir == home / "rover.logs"
    assert (home / "rover.toml").read_text("utf-8").count("\n#") > 5


class Typed(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def test_a_person_is_asked(meshbus: Meshbus, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = f"west-rover\n\n\n10.0.0.7:9000={KEY}\nsensors/\nyes\n"
    monkeypatch.setattr("tests.cli.conftest.io.StringIO", Typed)
    result = meshbus("new", stdin=answers)
    assert (result.code, result.row["config"]) == (Exit.OK, "node.toml")
    assert "Name of the node, such as west-rover [none]: " in result.err
    config = NodeConfig.load(home / "node.toml", {})
    assert (config.name, len(config.peers), config.channels[0].prefix) == ("west-rover", 1, "sensors/")
    (home / "node.toml").unlink()
    assert "Name of the node" not in meshbus("new", "--yes", stdin="").err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--name", "a b"], "name"),
        (["--bind", "nowhere"], "bind: invalid address 'nowhere'"),
        (["--subnet", "300"], "subnet"),
        (["--peer", "10.0.0.7:9000"], "--peer: expected HOST:PORT=PUBLIC_KEY"),
        (["--peer", "10.0.0.7:9000=ab"], "public_key"),
        (["--log", "Sensors"], "prefix"),
        (["missing/node.toml"], "path (from missing/node.toml): cannot be written"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(
    meshbus: Meshbus, home: Path, arguments: list[str], complaint: str
) -> None:
    result = meshbus("new", *arguments)
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert complaint in result.err
    assert ".new" not in result.err
    assert list(home.iterdir()) == []


def test_an_existing_file_is_kept(meshbus: Meshbus, home: Path) -> None:
    (home / "node.toml").write_text("# mine", "utf-8")
    result = meshbus("new")
    assert (result.code, (home / "node.toml").read_text("utf-8")) == (Exit.USAGE, "# mine")
    assert "exists; edit it, delete it first" in result.err
