"""Keys are made once, privately, and only public halves are shown."""

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import load_identity, load_mesh_key, load_psk
from meshbus.names.identity import noise_public_key
from tests.cli.conftest import Meshbus


def test_a_new_identity_is_private_and_shown_without_its_secret(meshbus: Meshbus, home: Path) -> None:
    result = meshbus("key", "new", "id.toml")
    identity = load_identity(home / "id.toml")
    assert result.code == Exit.OK
    assert result.row == {
        "identity": "id.toml",
        "node_id": f"{identity.node_id:016x}",
        "public_key": identity.entity_id.hex(),
        "noise_public_key": noise_public_key(identity.entity_id).hex(),
        "origin_hash": f"{identity.origin_hash:016x}",
    }
    assert identity.seed.hex() not in result.out + result.err
    assert identity.noise_private_key.hex() not in result.out + result.err
    assert stat.S_IMODE((home / "id.toml").stat().st_mode) == 0o600
    assert "keep this file private" in result.err


def test_key_show_prints_the_same_as_key_new(meshbus: Meshbus) -> None:
    made = meshbus("key", "new", "id.toml")
    shown = meshbus("key", "show", "id.toml")
    assert shown.row == made.row
    assert shown.err == ""


def test_the_default_place_is_the_configuration_directory(meshbus: Meshbus) -> None:
    made = meshbus("key", "new")
    assert Path(made.row["identity"]).is_file()
    assert meshbus("key", "show").row == made.row


def test_a_mesh_key_is_created_and_not_shown(meshbus: Meshbus, home: Path) -> None:
    result = meshbus("key", "psk", "mesh.key")
    assert (result.code, result.row) == (Exit.OK, {"psk_file": "mesh.key"})
    assert load_psk(home / "mesh.key").hex() not in result.out + result.err
    assert stat.S_IMODE((home / "mesh.key").stat().st_mode) == 0o600


def test_the_next_mesh_key_names_the_one_before_and_the_end_of_the_window(meshbus: Meshbus, home: Path) -> None:
    meshbus("key", "psk", "mesh.key")
    result = meshbus("key", "psk", "next.key", "--after", "mesh.key", "--window", "2h")
    assert result.code == Exit.OK
    old, new = load_mesh_key(home / "mesh.key"), load_mesh_key(home / "next.key")
    assert (new.previous, new.root) == (old.key, old.key)
    shown = datetime.fromisoformat(result.row["both_until"])
    assert shown == datetime.fromtimestamp(new.until_s, UTC)
    assert abs((shown - datetime.now(UTC)).total_seconds() - 7200) < 600
    assert new.key.hex() not in result.out + result.err
    result = meshbus("key", "psk", "third.key", "--after", "mesh.key", "--window", "soon")
    assert result.code == Exit.USAGE
    assert "--window: expected a number and s, m, h or d" in result.err
    assert not (home / "third.key").exists()


def test_a_terminal_gets_a_table(meshbus: Meshbus, terminal: None) -> None:
    meshbus("key", "new", "id.toml")
    result = meshbus("key", "show", "id.toml")
    assert "public key" in result.out
    assert "{" not in result.out


@pytest.mark.parametrize("verb", ["new", "psk"])
def test_nothing_is_overwritten(meshbus: Meshbus, home: Path, verb: str) -> None:
    (home / "file").write_text("mine", "utf-8")
    result = meshbus("key", verb, "file")
    assert result.code == Exit.USAGE
    assert "never overwritten" in result.err
    assert (home / "file").read_text("utf-8") == "mine"


def test_the_error_of_a_missing_or_readable_identity_has_advice(meshbus: Meshbus, home: Path) -> None:
    result = meshbus("key", "show", "none.toml")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert "create it with `meshbus key new none.toml`" in result.err
    meshbus("key", "new", "id.toml")
    (home / "id.toml").chmod(0o644)
    result = meshbus("key", "show", "id.toml")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert "run `chmod 600 id.toml`" in result.err
