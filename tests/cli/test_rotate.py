"""`meshbus rotate`: new secrets for running nodes, as users give them."""

import signal
from pathlib import Path

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_identity, create_next_psk, create_psk, load_identity, load_mesh_key
from meshbus.node.audit import AuditKind, read_audit
from tests.cli.conftest import Meshbus
from tests.cli.running import running, until

FAR = 4_000_000_000
"""The end of a window that lasts as long as any test."""


def test_a_running_node_takes_the_next_mesh_key_by_command_and_by_signal(
    meshbus: Meshbus, tmp_path: Path, home: Path
) -> None:
    create_psk(tmp_path / "mesh.key")
    second = create_next_psk(tmp_path / "second.key", load_mesh_key(tmp_path / "mesh.key"), FAR)
    third = create_next_psk(tmp_path / "third.key", second, FAR)
    with running(tmp_path / "a") as node:
        result = meshbus("rotate", "psk", tmp_path / "third.key", "--admin", node.admin)
        assert result.code == Exit.USAGE
        assert "does not name the key in force as its previous one" in result.err
        assert node.notice("rotation_refused")["secret"] == "mesh key"
        result = meshbus("rotate", "psk", tmp_path / "second.key", "--admin", node.admin)
        assert result.code == Exit.OK
        assert "the mesh key was replaced; the previous one is accepted until" in result.rows[0]["change"]
        assert load_mesh_key(tmp_path / "mesh.key") == second
        assert node.notice("secret_rotated")["via"] == "apply"
        assert meshbus("rotate", "psk", "--admin", node.admin).rows == []
        (tmp_path / "third.key").replace(tmp_path / "mesh.key")
        node.process.send_signal(signal.SIGHUP)
        assert node.notice("secret_rotated")["via"] == "sighup"
        rows = until(lambda: read_audit(tmp_path / "a" / "id.audit").rows, lambda rows: len(rows) == 3)
        assert {row.kind for row in rows} == {AuditKind.ROTATION}
        assert [row.result for row in rows] == ["refused", "applied", "applied"]
        secrets = {key.hex() for key in (second.key, second.root, third.key)}
        assert not any(secret in (tmp_path / "a" / "id.audit").read_text("utf-8") for secret in secrets)
        assert node.stop() == (Exit.OK, "meshbus: stopped\n")


def test_a_running_node_reads_its_token_files_again(meshbus: Meshbus, tmp_path: Path, home: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    meshbus("key", "new")
    holder = create_identity(tmp_path / "id.toml").entity_id.hex()
    for name in ("first", "second"):
        meshbus("token", "issue", holder, "sensors/", "--allow", "subscribe", "--out", tmp_path / f"{name}.token")
    (tmp_path / "first.token").replace(tmp_path / "own.token")
    with running(tmp_path / "a", 'tokens = ["../own.token"]\n') as node:
        assert meshbus("rotate", "tokens", "--admin", node.admin).rows == []
        (tmp_path / "second.token").replace(tmp_path / "own.token")
        changed = [{"change": f"the token of {tmp_path / 'a' / '../own.token'} was replaced"}]
        assert meshbus("rotate", "tokens", "--admin", node.admin).rows == changed
        assert node.notice("secret_rotated")["secret"] == "token"


def test_a_file_that_is_no_mesh_key_is_refused_before_a_node_is_asked(meshbus: Meshbus, home: Path) -> None:
    (home / "next.key").write_text("something", "utf-8")
    (home / "next.key").chmod(0o600)
    result = meshbus("rotate", "psk", "next.key", "--admin", home / "none.sock")
    assert result.code == Exit.USAGE
    assert "is damaged, or another kind of file" in result.err


def test_a_running_node_gets_another_key_that_its_issuer_signs_and_keeps_it_when_it_is_killed(
    meshbus: Meshbus, tmp_path: Path, home: Path
) -> None:
    create_psk(tmp_path / "mesh.key")
    issuer = create_identity(tmp_path / "issuer.toml")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.toml").write_text("", "utf-8")
    settings = f'policy_file = "policy.toml"\npolicy_issuers = ["{issuer.entity_id.hex()}"]\n'
    with running(tmp_path / "a", settings) as node:
        peer = f'[[peers]]\naddress = "{node.address}"\npublic_key = "{node.public_key}"\n'
        with running(tmp_path / "b", settings + peer) as other:
            secure = [True]
            until(
                lambda: [row.get("secure") for row in meshbus("peers", "--admin", other.admin).rows],
                lambda rows: rows == secure,
            )
            result = meshbus("rotate", "identity", "--admin", node.admin)
            assert result.code == Exit.USAGE
            assert "--identity" in result.err
            signed = ("--identity", tmp_path / "issuer.toml", "--reason", "copied")
            result = meshbus("rotate", "identity", *signed, "--admin", node.admin)
            assert result.code == Exit.OK, result.err
            assert node.public_key in result.rows[0]["change"]
            node.process.kill()  # at once: what counts is on the disk
            key = load_identity(tmp_path / "a" / "id.toml").entity_id.hex()
            assert key != node.public_key
            assert key in result.rows[0]["change"]
            (row,) = meshbus("revoke", "ls", "--admin", other.admin).rows
            assert (row["revoked"], row["public_key"], row["heir"]) == ("succession", node.public_key, key)
            rows = read_audit(tmp_path / "a" / "policy.toml.history").rows
            assert [one.result for one in rows if one.kind == AuditKind.ROTATION] == ["refused", "applied"]
    with running(tmp_path / "a", settings) as again:
        assert again.public_key == key
        (row,) = meshbus("revoke", "ls", "--admin", again.admin).rows
        assert row["heir"] == key
