"""`meshbus policy`: validate, diff, apply, sign and history, as users run them."""

import signal
from pathlib import Path

import numpy as np

from meshbus.cli.exit import Exit
from meshbus.config.node import history_of
from meshbus.config.policyfile import read_policy
from meshbus.keyfile import create_identity, create_psk
from tests.cli.conftest import Meshbus
from tests.cli.running import running, until
from tests.spark.packets import gateway_of, random_policy, record

OLD = 'unlisted_channels = "open"\n[[channels]]\nname = "robots/pose"\nvisibility = "subnet-local"\n'
NEW = OLD.replace("subnet-local", "global") + 'subscribe_caps = { require_tags = ["lidar"] }\n'
TOLD = (
    "channel robots/pose: visibility subnet-local → global; nodes in every subnet may get its events; subscribers without"
    " the capability lidar lose access"
)


def written(home: Path, text: str, name: str) -> Path:
    file = home / name
    file.write_text(text, "utf-8")
    return file


def test_validate_names_the_file_and_the_line(meshbus: Meshbus, home: Path) -> None:
    good, bad = written(home, OLD, "good.toml"), written(home, OLD + 'visibilty = "global"\n', "bad.toml")
    result = meshbus("policy", "validate", good)
    assert (result.code, result.err) == (Exit.OK, "")
    assert result.row == {
        "file": str(good), "valid": True, "channels": 1, "gateways": 0, "exports": 0, "trusted_issuers": 0,
        "version": None, "issuer": None,
    }  # fmt: skip
    result = meshbus("policy", "validate", good, bad)
    assert result.code == Exit.USAGE
    assert [row["valid"] for row in result.rows] == [True, False]
    assert result.err == (
        f"meshbus: channels[0].visibilty (from {bad}, line 5): unknown setting; did you mean 'visibility'?\n"
    )


def test_validate_shows_all_errors_and_says_if_there_may_be_more(meshbus: Meshbus, home: Path) -> None:
    bad = written(home, OLD + 'priority = "high"\nlog = "published"\n', "bad.toml")
    result = meshbus("policy", "validate", bad)
    assert (result.code, len(result.row["problems"])) == (Exit.USAGE, 2)
    assert result.err == "".join(f"meshbus: {problem}\n" for problem in result.row["problems"])
    many = written(home, "".join(f"x{number} = 1\n" for number in range(50)), "many.toml")
    result = meshbus("policy", "validate", many)
    assert len(result.row["problems"]) == 20
    assert "there may be more errors than these 20; correct them" in result.err.splitlines()[-1]


def test_diff_in_words(meshbus: Meshbus, home: Path) -> None:
    old, new = written(home, OLD, "old.toml"), written(home, NEW, "new.toml")
    assert meshbus("policy", "diff", new, "--old", old).rows == [{"change": TOLD}]
    assert meshbus("policy", "diff", old, "--old", old).rows == []
    config = written(home, 'policy_file = "old.toml"\n', "node.toml")
    assert meshbus("policy", "diff", new, "--config", config).rows == [{"change": TOLD}]
    inline = written(home, OLD, "inline.toml")
    assert meshbus("policy", "diff", new, "--config", inline).rows == [{"change": TOLD}]
    result = meshbus("policy", "diff", home / "none.toml")
    assert result.code == Exit.USAGE
    assert "the file does not exist; check the path" in result.err


def test_diff_replays_recorded_packets(meshbus: Meshbus, home: Path) -> None:
    rng = np.random.default_rng(3)
    record(home / "log", 7, gateway_of(random_policy(rng)), rng, 500)
    new = written(home, '[[gateways]]\nnode = "gw"\n', "new.toml")
    config = written(home, 'name = "gw"\n', "node.toml")
    result = meshbus("policy", "diff", new, "--config", config, "--replay", home / "log", "--from", "2001-01-01")
    assert result.code == Exit.OK
    changed = [row for row in result.rows if "recorded" in row]
    assert sum(row["packets"] for row in changed) > 0
    assert all(row["recorded"] != row["proposed"] for row in changed)
    assert f"changes the verdict of {sum(row['packets'] for row in changed)} of " in result.err
    result = meshbus("policy", "diff", new, "--config", config, "--replay", home / "log", "--to", "2001-01-01")
    assert result.err.endswith("changes the verdict of 0 of 0 packets\n")


def test_sign_and_validate(meshbus: Meshbus, home: Path) -> None:
    issuer, file = create_identity(home / "issuer.toml"), written(home, OLD, "policy.toml")
    result = meshbus("policy", "sign", file, "--as-version", 3, "--identity", "issuer.toml", "--out", "signed.toml")
    assert (result.code, result.row["version"]) == (Exit.OK, 3)
    assert result.row["issuer"] == issuer.entity_id.hex()
    signed = read_policy(home / "signed.toml")
    assert signed.policy == read_policy(file).policy
    assert meshbus("policy", "validate", "signed.toml").row["version"] == 3
    # Signed again, the line is replaced.
    meshbus("policy", "sign", "signed.toml", "--as-version", 4, "--identity", "issuer.toml", "--out", "again.toml")
    assert (home / "again.toml").read_bytes().count(b"# meshbus-policy") == 1
    # A change after the signature is seen.
    text = (home / "signed.toml").read_text("utf-8")
    changed = written(home, text.replace("subnet-local", "global"), "changed.toml")
    result = meshbus("policy", "validate", changed)
    assert result.code == Exit.USAGE
    assert "changed.toml, line 1): the first line is not a signature of the rest" in result.err
    result = meshbus("policy", "sign", file, "--as-version", 0, "--identity", "issuer.toml", "--out", "zero.toml")
    assert (result.code, "must be from 1 to" in result.err) == (Exit.USAGE, True)


def test_apply_show_history_and_sighup_at_a_running_node(meshbus: Meshbus, tmp_path: Path, home: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    own = tmp_path / "a" / "policy.toml"
    own.parent.mkdir()
    own.write_text(OLD, "utf-8")
    with running(tmp_path / "a", 'policy_file = "policy.toml"\n') as node:
        result = meshbus("policy", "apply", written(home, NEW, "new.toml"), "--admin", node.admin)
        assert (result.code, result.rows) == (Exit.OK, [{"change": TOLD}])
        assert own.read_text("utf-8") == NEW
        assert node.notice("policy_changed")["changes"] == [TOLD]
        shown = meshbus("policy", "show", "--admin", node.admin).row
        assert shown["policy_file"] == str(own)
        # An error is found before the node is asked, and a node without one keeps the old policy.
        result = meshbus("policy", "apply", written(home, "x = 1\n", "bad.toml"), "--admin", node.admin)
        assert result.code == Exit.USAGE
        assert "bad.toml, line 1" in result.err
        own.write_text("x = 1\n", "utf-8")
        node.process.send_signal(signal.SIGHUP)
        assert "policy.toml, line 1" in node.notice("policy_refused")["problem"]
        own.write_text(OLD, "utf-8")
        node.process.send_signal(signal.SIGHUP)
        assert node.notice("policy_changed")["via"] == "sighup"
        rows = until(lambda: meshbus("policy", "history", own).rows, lambda found: len(found) == 4)
        assert [(row["via"], row["result"]) for row in rows] == [
            ("start", "applied"), ("apply", "applied"), ("sighup", "refused"), ("sighup", "applied"),
        ]  # fmt: skip
        assert meshbus("policy", "history", own, "--limit", 1).rows == rows[-1:]
    path = history_of(own)
    path.write_bytes(path.read_bytes().replace(b'"via":"apply"', b'"via":"start"'))
    result = meshbus("policy", "history", own)
    assert (result.code, "was changed, removed or inserted" in result.err) == (Exit.FAILED, True)


def test_what_is_missing_is_said(meshbus: Meshbus, home: Path) -> None:
    result = meshbus("policy", "history")
    assert (result.code, "policy_file: is not set; give the policy file" in result.err) == (Exit.USAGE, True)
    assert meshbus("policy", "history", home / "policy.toml").rows == []
    assert meshbus("policy", "history", home / "policy.toml", "--limit", -1).code == Exit.USAGE
    file = written(home, OLD, "policy.toml")
    assert meshbus("policy", "apply", file, "--admin", home / "none.sock").code == Exit.UNREACHABLE
