"""What is wrong with a configuration or a machine is found, and each line says what to do."""

import time
from pathlib import Path
from typing import Any

import pytest

from meshbus.cli import check as subject
from meshbus.cli.check import Finding, Result
from meshbus.cli.exit import Exit
from meshbus.keyfile import create_identity, save_certificate
from meshbus.names.subnet import SubnetId
from meshbus.wire.certificate import Certificate
from tests.cli.conftest import Meshbus

GOOD = 'identity = "id.toml"\npsk_file = "mesh.key"\n'


@pytest.fixture
def good(meshbus: Meshbus, home: Path) -> Path:
    meshbus("key", "new", "id.toml")
    meshbus("key", "psk", "mesh.key")
    (home / "node.toml").write_text(GOOD, "utf-8")
    return home / "node.toml"


def _found(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["check"]: row["result"] for row in rows}


def test_a_valid_configuration_passes_all_checks(meshbus: Meshbus, good: Path) -> None:
    result = meshbus("check", good)
    assert (result.code, result.err) == (Exit.OK, "")
    found = _found(result.rows)
    assert Result.BAD not in found.values()
    assert found["configuration"] == found["identity"] == found["mesh key"] == found["python"] == Result.GOOD
    assert {"kernels", "trains", "receive buffer"} <= set(found)


def test_a_bad_file_is_named_and_the_machine_is_checked_nevertheless(meshbus: Meshbus, good: Path) -> None:
    good.write_text("hearbeat_s = 1\n", "utf-8")
    result = meshbus("check", good)
    assert result.code == Exit.FAILED
    assert _found(result.rows)["configuration"] == Result.BAD
    assert "did you mean 'heartbeat_s'?" in result.rows[0]["found"]
    assert "python" in _found(result.rows)
    assert result.err.startswith("meshbus: 1 of ")
    assert result.err.count("\n") == 1


def test_a_missing_mesh_key_fails_and_a_missing_identity_does_not(meshbus: Meshbus, home: Path) -> None:
    result = meshbus("check")
    assert result.code == Exit.FAILED
    found = _found(result.rows)
    assert (found["mesh key"], found["identity"]) == (Result.BAD, Result.ADVICE)
    assert not list(home.iterdir()), "checking creates nothing"


def test_an_identity_that_others_can_read_fails(meshbus: Meshbus, good: Path) -> None:
    (good.parent / "id.toml").chmod(0o644)
    result = meshbus("check", good)
    assert result.code == Exit.FAILED
    assert _found(result.rows)["identity"] == Result.BAD


def test_a_policy_file_is_checked(meshbus: Meshbus, good: Path) -> None:
    policy = good.parent / "policy.toml"
    good.write_text(GOOD + 'policy_file = "policy.toml"\n', "utf-8")
    policy.write_text('[[gateways]]\nnode = "gw"\n[[channels]]\nname = "a"\nrequire_token = true\n', "utf-8")
    found = {row["check"]: row["result"] for row in meshbus("check", good).rows}
    assert (found["policy"], found["channels"], found["gateway"]) == (Result.GOOD, Result.ADVICE, Result.GOOD)
    policy.write_text("x = 1\n", "utf-8")
    result = meshbus("check", good)
    (row,) = [row for row in result.rows if row["check"] == "policy"]
    assert (result.code, row["result"]) == (Exit.FAILED, Result.BAD)
    assert "policy.toml, line 1" in row["found"]


def test_tokens_and_issuers_are_checked(meshbus: Meshbus, good: Path) -> None:
    entity = meshbus("key", "show", "id.toml").row["public_key"]
    meshbus("token", "issue", entity, "a", "--allow", "subscribe", "--identity", "id.toml", "--out", "good.token")
    (good.parent / "bad.token").write_text("nonsense", "utf-8")
    good.write_text(GOOD + 'tokens = ["good.token", "bad.token"]\ncompat_any_issuer = true\n', "utf-8")
    rows = meshbus("check", good).rows
    assert [row["result"] for row in rows if row["check"] == "token"] == [Result.GOOD, Result.BAD]
    assert _found(rows)["issuers"] == Result.ADVICE


def test_what_the_issuer_gave_is_checked(meshbus: Meshbus, good: Path) -> None:
    home, issuer = good.parent, create_identity(good.parent / "issuer.toml")
    for name, start in (("now", 0), ("past", -3000)):
        begin = int(time.time_ns() // 1_000_000_000) + start
        certificate = Certificate(
            issuer=issuer.entity_id,
            subject=issuer.entity_id,
            serial=1,
            not_before=begin - 1000,
            not_after=begin + 1000,
            subnet=SubnetId.GLOBAL,
            name="rover-7",
            tags=(),
        )
        save_certificate(home / name, certificate.signed_by(issuer))
    for name, result in (("now", Result.GOOD), ("past", Result.BAD), ("none", Result.BAD)):
        good.write_text(GOOD + f'certificate = "{name}"\nissuer_key = "issuer.toml"\n', "utf-8")
        found = _found(meshbus("check", good).rows)
        assert (found["certificate"], found["issuer key"]) == (result, Result.GOOD)
    found = _found(meshbus("check", good, "--set", "issuer_key=none.toml").rows)
    assert found["issuer key"] == Result.BAD


def test_an_ephemeral_identity_needs_no_file(meshbus: Meshbus, good: Path) -> None:
    assert (
        _found(meshbus("check", good, "--set", "ephemeral=true", "--set", "identity=none").rows)["identity"]
        == Result.GOOD
    )


def test_an_address_of_another_machine_fails(meshbus: Meshbus, good: Path) -> None:
    rows = meshbus("check", good, "--set", "bind=192.0.2.1:9000").rows
    assert rows[-1]["check"] == "socket"
    assert rows[-1]["result"] == Result.BAD


def test_a_machine_that_works_but_slowly_gets_advice(
    meshbus: Meshbus, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHBUS_JIT", "0")
    monkeypatch.setattr("meshbus.node.driving.udp._LINUX", False)
    result = meshbus("check", good, "--set", "receive_buffer_bytes=1073741824")
    assert result.code == Exit.OK, "advice is no failure"
    rows = {row["check"]: row for row in result.rows}
    assert rows["kernels"]["result"] == rows["trains"]["result"] == Result.ADVICE
    assert "meshbus[fast]" in rows["kernels"]["to_do"]
    assert "rmem_max=1073741824" in rows["receive buffer"]["to_do"]


def test_every_failed_check_has_advice(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBUS_JIT", "0")
    for row in meshbus("check", "--set", "bind=192.0.2.1:9", "--set", "compat_any_issuer=true").rows:
        assert bool(row["to_do"]) == (row["result"] != Result.GOOD), row


def test_a_terminal_gets_a_table(meshbus: Meshbus, good: Path, terminal: None) -> None:
    out = meshbus("check", good).out
    assert "to do" in out
    assert "python" in out
    assert subject.Finding._fields == Finding._fields == ("check", "result", "found", "to_do")


def test_the_edge_is_checked_with_its_files(meshbus: Meshbus, good: Path) -> None:
    edge = '[[edge]]\npublishers = "tcp://127.0.0.1:5555"\nchannels_in = ["a/"]\n'
    good.write_text(f"{GOOD}{edge}", "utf-8")
    assert _found(meshbus("check", good).rows)["edge[0]"] == Result.ADVICE
    good.write_text(f"{GOOD}{edge.replace('tcp://127.0.0.1:5555', 'ipc:///run/in.sock')}", "utf-8")
    assert _found(meshbus("check", good).rows)["edge[0]"] == Result.GOOD
    good.write_text(f'{GOOD}{edge}security = "plain"\npasswords_file = "names.toml"\n', "utf-8")
    result = meshbus("check", good)
    assert result.code == Exit.FAILED
    assert _found(result.rows)["edge[0]"] == Result.BAD
    assert "the file does not exist" in result.err


@pytest.mark.parametrize(
    ("settings", "result", "part"),
    [
        ('[[channels]]\nname = "a"\n', Result.GOOD, "1 rule"),
        ('[[channels]]\nprefix = "a/"\n', Result.GOOD, "names for rules by prefix are learned"),
        ('announce_channels = "none"\n[[channels]]\nprefix = "a/"\n', Result.ADVICE, "under 'a/' cannot be learned"),
        ('announce_channels = "none"\n[[channels]]\nprefix = "a/"\nnames = ["a/b"]\n', Result.GOOD, "configured"),
        (
            'announce_channels = "none"\n[[channels]]\nprefix = "a/"\n[[channels]]\nname = "a/b"\n',
            Result.GOOD,
            "configured",
        ),
        (
            'announce_channels = "none"\n[[channels]]\nprefix = "a/"\nvisibility = "subnet-local"\n',
            Result.GOOD,
            "1 rule",
        ),
        ('[[channels]]\nprefix = "a/"\nrequire_token = true\n', Result.ADVICE, "announce restricted channels"),
        (
            'announce_channels = "all"\n[[channels]]\nprefix = "a/"\nrequire_token = true\n',
            Result.GOOD,
            "names for rules by prefix are learned",
        ),
    ],
)
def test_rules_by_prefix_that_a_gateway_cannot_apply_are_reported(
    meshbus: Meshbus, good: Path, settings: str, result: Result, part: str
) -> None:
    good.write_text(f"{GOOD}gateway = true\n{settings}", "utf-8")
    (row,) = [row for row in meshbus("check", good).rows if row["check"] == "gateway"]
    assert row["result"] == result
    assert part in row["found"]
    assert bool(row["to_do"]) == (result is Result.ADVICE)
