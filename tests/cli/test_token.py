"""Permissions are issued, handed on, shown and judged, as a node would judge them."""

from pathlib import Path

import pytest

from meshbus.cli import token as subject
from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk, load_tokens
from meshbus.names.channel import ChannelName
from tests.cli.conftest import Meshbus
from tests.cli.running import running

LIDAR = "sensors/lidar"


@pytest.fixture
def people(meshbus: Meshbus) -> dict[str, str]:
    """Public keys: the root with the usual identity, and two others with files of their own."""
    return {
        "root": meshbus("key", "new").row["public_key"],
        "planner": meshbus("key", "new", "planner.toml").row["public_key"],
        "helper": meshbus("key", "new", "helper.toml").row["public_key"],
    }


@pytest.fixture
def token(meshbus: Meshbus, people: dict[str, str], home: Path) -> Path:
    """The planner may subscribe, and hand that on."""
    meshbus(
        "token", "issue", people["planner"], LIDAR, "--allow", "subscribe,delegate", "--depth", 1, "--out", "p.token"
    )
    return home / "p.token"


def test_an_issued_token_has_the_requested_fields(meshbus: Meshbus, people: dict[str, str], home: Path) -> None:
    result = meshbus(
        "token", "issue", people["planner"], LIDAR, "--allow", "publish", "subscribe", "--ttl", "2h", "--generation", 3,
        "--out", "a.token",
    )  # fmt: skip
    assert result.code == Exit.OK
    (made,) = load_tokens(home / "a.token")
    assert made.issuer.hex() == people["root"]
    assert made.subject.hex() == people["planner"]
    assert made.not_after - made.not_before == 7200
    assert made.channel_hash == ChannelName(LIDAR).hash
    assert result.row["file"] == "a.token"
    assert result.row["allows"] == ["publish", "subscribe"]
    assert (result.row["state"], result.row["good_signature"], result.row["generation"]) == ("valid", True, 3)


def test_without_a_file_the_token_is_printed(meshbus: Meshbus, people: dict[str, str]) -> None:
    text = meshbus("token", "issue", people["planner"], LIDAR, "--allow", "subscribe").out
    shown = meshbus("token", "show", "-", stdin=text)
    assert shown.row["subject"] == people["planner"]
    asked = meshbus("token", "issue", people["planner"], LIDAR, "--allow", "subscribe", "--json").row
    assert meshbus("token", "show", "-", stdin=asked["token"]).row["issuer"] == people["root"]


def test_a_token_for_every_channel(meshbus: Meshbus, people: dict[str, str]) -> None:
    text = meshbus("token", "issue", people["planner"], "--every-channel", "--allow", "subscribe").out
    row = meshbus("token", "verify", "-", "--channel", "any/thing", "--allow", "subscribe", stdin=text).row
    assert (row["every_channel"], row["channel_hash"]) == (True, None)


def test_a_delegated_token_is_a_chain(meshbus: Meshbus, people: dict[str, str], token: Path) -> None:
    text = meshbus(
        "token", "delegate", token, people["helper"], "--allow", "subscribe", "--identity", "planner.toml"
    ).out
    rows = meshbus("token", "show", "-", stdin=text).rows
    assert [row["subject"] for row in rows] == [people["planner"], people["helper"]]
    result = meshbus("token", "verify", "-", "--subject", people["helper"], "--channel", LIDAR, stdin=text)
    assert (result.code, result.row["valid"]) == (Exit.OK, True)


def test_the_trusted_issuers_are_those_of_the_configuration_and_the_own_key(
    meshbus: Meshbus, people: dict[str, str], token: Path, home: Path
) -> None:
    assert meshbus("token", "verify", token).code == Exit.OK
    assert meshbus("token", "verify", token, "--issuer", people["root"]).code == Exit.OK
    assert meshbus("token", "verify", token, "--issuer", people["helper"]).code == Exit.DENIED
    (home / "node.toml").write_text('identity = "helper.toml"\n', "utf-8")
    assert meshbus("token", "verify", token, "--config", "node.toml").code == Exit.DENIED
    (home / "node.toml").write_text(f'identity = "none.toml"\ntrusted_issuers = ["{people["root"]}"]\n', "utf-8")
    assert meshbus("token", "verify", token, "--config", "node.toml").code == Exit.OK


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--channel", "sensors/radar"], "the token is not for channel 'sensors/radar'"),
        (["--allow", "publish"], "the token allows only subscribe, delegate"),
        (["--subject", "00" * 32], "the token is for subject "),
        (["--issuer", "00" * 32], "the chain does not start at a trusted issuer"),
    ],
)
def test_a_token_that_would_be_refused_exits_with_status_4(
    meshbus: Meshbus, token: Path, arguments: list[str], reason: str
) -> None:
    result = meshbus("token", "verify", token, *arguments)
    assert result.code == Exit.DENIED
    assert result.row["valid"] is False
    assert result.row["reason"] == "not_authorized"
    assert reason in result.row["problem"]
    assert result.err.startswith("meshbus: refused: ")


def test_expired_early_and_forged_tokens_are_shown_as_such(
    meshbus: Meshbus, people: dict[str, str], token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (real,) = load_tokens(token)
    monkeypatch.setattr(subject, "_now", lambda: real.not_after)
    assert meshbus("token", "verify", token).row["reason"] == "expired"
    assert meshbus("token", "show", token).row["state"] == "expired"
    monkeypatch.setattr(subject, "_now", lambda: real.not_before - 1)
    assert meshbus("token", "verify", token).row["reason"] == "not_yet_valid"
    assert meshbus("token", "show", token).row["state"] == "not yet valid"
    monkeypatch.undo()


def test_a_forged_token_is_shown_as_such(meshbus: Meshbus, token: Path) -> None:
    from meshbus.wire.messages.token import encode_token

    (real,) = load_tokens(token)
    forged = encode_token(real)[:64] + b"\x0f" + encode_token(real)[65:]
    assert meshbus("token", "show", "-", stdin=forged.hex()).row["good_signature"] is False
    result = meshbus("token", "verify", "-", stdin=forged.hex())
    assert (result.code, result.row["reason"]) == (Exit.DENIED, "bad_signature")


def test_a_terminal_gets_a_block_for_each_token(meshbus: Meshbus, token: Path, terminal: None) -> None:
    out = meshbus("token", "show", token).out
    assert "subscribe, delegate" in out
    assert "good signature" in out


def test_a_date_beyond_the_calendar_is_a_number(meshbus: Meshbus, people: dict[str, str]) -> None:
    assert subject._date(2**63) == str(2**63)
    assert subject._date(0) == "1970-01-01T00:00:00Z"


NOBODY = "11" * 32


def test_a_running_node_revokes(meshbus: Meshbus, tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as node:
        result = meshbus("token", "revoke", NOBODY, 3, "--admin", node.admin)
        assert (result.code, result.out) == (Exit.OK, "")
        assert meshbus("token", "revoke", NOBODY, 3, "--config", tmp_path / "a" / "node.toml").code == Exit.OK
        result = meshbus("token", "revoke", NOBODY, 2**32, "--admin", node.admin)
        assert (result.code, result.err) == (
            Exit.USAGE,
            "meshbus: generation: must be from 0 to 4294967295, got 4294967296\n",
        )


def test_revoke_without_a_node_is_an_error(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert meshbus("token", "revoke", NOBODY, 3).code == Exit.UNREACHABLE
    monkeypatch.setenv("MESHBUS_ADMIN_SOCKET", "")
    result = meshbus("token", "revoke", NOBODY, 3)
    assert (result.code, result.err) == (
        Exit.USAGE,
        "meshbus: --admin: required because the configuration disables the admin socket\n",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["issue", "xyz", "a", "--allow", "subscribe"], 2, "public key: expected 64 hex digits"),
        (["issue", NOBODY, "Bad", "--allow", "subscribe"], 2, "channel 'Bad': upper case"),
        (["issue", NOBODY, "--allow", "subscribe"], 2, "channel: give either a channel or --every-channel"),
        (["issue", NOBODY, "a", "--every-channel", "--allow", "subscribe"], 2, "channel: give either a channel or"),
        (["issue", NOBODY, "a"], 2, 'command "token issue" parameter --allow requires an argument'),
        (["issue", NOBODY, "a", "--allow", "read"], 2, "--allow: unknown permission 'read'; choose from publish, subscribe, admin, delegate"),
        (["issue", NOBODY, "a", "--allow", "subscribe", "--ttl", "soon"], 2, "--ttl: expected a number and s, m, h or d"),
        (["issue", NOBODY, "a", "--allow", "subscribe", "--ttl", "0s"], 2, "--ttl: expected a number and s, m, h or d"),
        (["issue", NOBODY, "a", "--allow", "subscribe", "--depth", "1"], 2, "--depth: 1 requires the delegate permission"),
        (["issue", NOBODY, "a", "--allow", "delegate", "--depth", "300"], 2, "token"),
        (["issue", NOBODY, "a", "--allow", "delegate", "--depth", "x"], 2, 'invalid value for --depth: unable to convert "x" into int'),
        (["issue", NOBODY, "a", "--allow", "subscribe", "--identity", "no"], 2, "identity (from no): the file does not exist"),
        (["show", "no.token"], 2, "token (from no.token): the file does not exist; check the path"),
        (["show", "-"], 2, "token (from standard input): is neither hex nor base64"),
        (["delegate", "p.token", NOBODY, "--allow", "subscribe"], 4, "only the subject of a token can delegate it"),
        (["verify", "p.token", "--issuer", "x"], 2, "public key: expected 64 hex digits"),
        (["verify", "p.token", "--config", "no.toml"], 2, "config (from no.toml): the file does not exist"),
    ],
)  # fmt: skip
def test_the_error_of_bad_input_is_one_line(
    meshbus: Meshbus, token: Path, arguments: list[str], code: int, complaint: str
) -> None:
    result = meshbus("token", *arguments)
    assert result.code == code
    assert result.err.startswith(f"meshbus: {complaint}")
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_a_token_for_a_prefix_that_may_be_renewed(meshbus: Meshbus, people: dict[str, str], home: Path) -> None:
    result = meshbus(
        "token", "issue", people["planner"], "sensors/", "--allow", "subscribe", "--renewable", "--out", "a.token"
    )
    assert (result.code, result.row["prefix"], result.row["renewable"]) == (Exit.OK, True, True)
    assert result.row["allows"] == ["subscribe"]
    assert meshbus("token", "verify", "a.token", "--channel", LIDAR, "--allow", "subscribe").code == Exit.OK
    result = meshbus("token", "verify", "a.token", "--channel", "other/lidar")
    assert result.code == Exit.DENIED
    assert "the token is not for channel 'other/lidar'" in result.err
    assert meshbus("token", "issue", people["planner"], "Sensors/", "--allow", "subscribe").code == Exit.USAGE
