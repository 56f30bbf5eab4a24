"""`meshbus audit`: show who changed what about the policy, the members and the keys of a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Parameter

from meshbus.cli.exit import Exit
from meshbus.cli.options import Config
from meshbus.cli.output import Json, for_people, note, plural, show_rows

if TYPE_CHECKING:
    from meshbus.node.audit import AuditRow

Limit: TypeAlias = Annotated[int, Parameter(help="Show the newest rows only, this many; 0 for all.")]


def audit(
    file: Annotated[Path | None, Parameter(help="The audit log; default: that of the configuration.")] = None,
    /,
    *,
    kind: Annotated[str | None, Parameter(help="Show one kind only: policy, join, rotation or revocation.")] = None,
    config: Config = None,
    limit: Limit = 20,
    json: Json = False,
) -> Exit:
    """Show who changed what, when and how, and what was refused; exits with status 1 if the log itself was edited."""
    from meshbus.cli.options import load_config
    from meshbus.errors import ConfigError
    from meshbus.node.audit import AuditKind

    if kind is not None and kind not in set(AuditKind):
        raise ConfigError("--kind", f"unknown kind {kind!r}; choose from {', '.join(AuditKind)}")
    return show_audit(load_config(config).audit_path() if file is None else file, kind, limit, json=json)


def show_audit(path: Path, kind: str | None, limit: int, *, json: bool) -> Exit:
    """Print the newest rows of an audit log, and whether all of them are as they were written."""
    from meshbus.errors import ConfigError
    from meshbus.node.audit import read_audit

    if limit < 0:
        raise ConfigError("--limit", f"must be 0 or more, got {limit}")
    found = read_audit(path)
    rows = [_shown(row) for row in found.rows if kind in {None, row.kind}][-limit:]
    columns = ("at", *(() if kind else ("kind",)), "by", "via", "result", "what", "version")
    show_rows(rows, columns, json=json, empty="no change is recorded yet")
    for problem in found.problems:
        note(problem)
    if for_people(json) and rows and not found.problems:
        note(f"{plural(len(found.rows), 'row')}, unchanged since they were written; hash of the last one {found.last}")
    return Exit.FAILED if found.problems else Exit.OK


def _shown(row: AuditRow) -> dict[str, Any]:
    import msgspec

    shown: dict[str, Any] = msgspec.to_builtins(row)
    return {**shown, "what": row.problem or "; ".join(row.changes)}


def this_caller() -> str:
    """Return who runs this command; behind sudo, who called it."""
    import os

    from meshbus.node.audit import this_user

    return os.environ.get("SUDO_USER") or this_user()
