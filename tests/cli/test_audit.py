"""`meshbus audit`: the rows of all kinds, whether somebody edited them, and what is wrong with a question."""

from pathlib import Path

import pytest

from meshbus.cli.audit import this_caller
from meshbus.cli.exit import Exit
from meshbus.node.audit import AuditKind, AuditLog, AuditRow
from tests.cli.conftest import Meshbus


def written(path: Path, kind: AuditKind, what: str, problem: str | None = None) -> None:
    result = "applied" if problem is None else "refused"
    row = AuditRow(
        kind=kind, at="2026", by="ada", via="x", node_id="ff", result=result, changes=(what,), problem=problem
    )
    AuditLog(path).append(row)


@pytest.fixture
def log(home: Path) -> Path:
    path = home / "node.audit"
    written(path, AuditKind.POLICY, "a channel")
    written(path, AuditKind.JOIN, "a robot")
    written(path, AuditKind.JOIN, "another robot", "it came too late")
    return path


def test_rows_are_shown_by_kind_and_number(meshbus: Meshbus, log: Path) -> None:
    result = meshbus("audit", log)
    assert (result.code, result.err) == (Exit.OK, "")
    assert [(row["kind"], row["what"]) for row in result.rows] == [
        ("policy", "a channel"), ("join", "a robot"), ("join", "it came too late"),
    ]  # fmt: skip
    assert [row["what"] for row in meshbus("audit", log, "--kind", "join", "--limit", 1).rows] == ["it came too late"]
    assert len(meshbus("audit", log, "--limit", 0).rows) == 3


def test_the_log_is_that_of_the_configuration(meshbus: Meshbus, home: Path, log: Path) -> None:
    config = home / "node.toml"
    config.write_text('audit_log = "node.audit"\n', "utf-8")
    assert len(meshbus("audit", "--config", config).rows) == 3
    config.write_text('identity = "robot.toml"\n', "utf-8")
    assert meshbus("audit", "--config", config).rows == []
    written(home / "robot.audit", AuditKind.JOIN, "a robot")
    assert len(meshbus("audit", "--config", config).rows) == 1


def test_an_edit_is_reported(meshbus: Meshbus, log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b"a robot", b"a rocket"))
    result = meshbus("audit", log)
    assert (result.code, "was changed, removed or inserted" in result.err) == (Exit.FAILED, True)


@pytest.mark.usefixtures("terminal")
def test_people_get_a_table_and_the_hash(meshbus: Meshbus, log: Path) -> None:
    result = meshbus("audit", log)
    assert "a robot" in result.out
    assert "3 rows, unchanged since they were written; hash of the last one" in result.err


def test_wrong_questions(meshbus: Meshbus, log: Path, home: Path) -> None:
    result = meshbus("audit", log, "--kind", "joins")
    assert (result.code, "unknown kind 'joins'; choose from policy, join" in result.err) == (Exit.USAGE, True)
    result = meshbus("audit", log, "--limit", -1)
    assert (result.code, "must be 0 or more, got -1" in result.err) == (Exit.USAGE, True)
    config = home / "node.toml"
    config.write_text("ephemeral = true\n", "utf-8")
    result = meshbus("audit", "--config", config)
    assert (result.code, "required for an ephemeral node" in result.err) == (Exit.USAGE, True)


def test_the_caller_behind_sudo_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    assert this_caller() == "ada"
    monkeypatch.delenv("SUDO_USER")
    assert this_caller()
