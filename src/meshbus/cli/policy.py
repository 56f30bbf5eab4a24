"""`meshbus policy`: check, compare and apply the policy of a fleet, and show who changed it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from meshbus.cli.asking import Admin, ask
from meshbus.cli.audit import Limit, show_audit, this_caller
from meshbus.cli.exit import Exit
from meshbus.cli.options import Config
from meshbus.cli.output import Json, note, show_facts, show_rows
from meshbus.cli.token import Signer

app = App(name="policy")


@app.command
def validate(
    files: Annotated[list[Path], Parameter(help="Policy files.", negative=())], /, *, json: Json = False
) -> Exit:
    """Check policy files; exits with status 2 if one of them is not valid. Each error names the file and the line.

    All errors of a file are shown, up to 20. Whether entries contradict each other is checked when each of them is right, and
    text that is not TOML ends at its first error.
    """
    from meshbus.config.findings import MOST_ERRORS
    from meshbus.config.policyfile import read_policy
    from meshbus.errors import ConfigError

    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            found = read_policy(file)
        except ConfigError as error:
            problems = [str(one) for one in (error, *error.more)]
            rows.append({"file": str(file), "valid": False, "problems": problems})
            for problem in problems:
                note(problem)
            if len(problems) == MOST_ERRORS:
                note(f"{file}: there may be more errors than these {MOST_ERRORS}; correct them, and validate it again")
        else:
            facts = {"version": found.version or None, "issuer": found.statement and found.statement.issuer.hex()}
            counts = {
                key: len(getattr(found.policy, key)) for key in ("channels", "gateways", "exports", "trusted_issuers")
            }
            rows.append({"file": str(file), "valid": True, **counts, **facts})
    show_rows(
        rows, ("file", "valid", "channels", "gateways", "exports", "trusted_issuers", "version"), json=json, empty=""
    )
    return Exit.OK if all(row["valid"] for row in rows) else Exit.USAGE


@app.command
def diff(
    new: Annotated[Path, Parameter(help="The new policy file.")],
    /,
    *,
    old: Annotated[Path | None, Parameter(help="The old policy file; default: that of the configuration.")] = None,
    config: Annotated[Path | None, Parameter(help="Configuration file of the node with the old policy.")] = None,
    replay: Annotated[
        Path | None,
        Parameter(help="Also replay recorded packets by the new policy: a log_dir, or the tables of a pipeline."),
    ] = None,
    recorder: Annotated[
        str | None, Parameter(help="With --replay: the gateway whose packets are replayed, by its node id in hex.")
    ] = None,
    start: Annotated[
        datetime | None, Parameter("--from", help="With --replay: packets from this time on (UTC).")
    ] = None,
    end: Annotated[datetime | None, Parameter("--to", help="With --replay: packets before this time (UTC).")] = None,
    json: Json = False,
) -> None:
    """Show in words what a new policy changes, and with --replay which recorded packets it would decide otherwise."""
    import msgspec

    from meshbus.cli.options import load_config
    from meshbus.cli.policyreplay import Recorded
    from meshbus.config.policydiff import differences
    from meshbus.config.policyfile import policy_of, read_policy

    proposed = read_policy(new).policy
    settings = load_config(config)
    present = policy_of(settings, 0) if old is None else read_policy(old).policy
    changes = [{"change": one} for one in differences(present, proposed)]
    show_rows(changes, ("change",), json=json, empty="the two policies mean the same")
    if replay is None:
        return
    where = Recorded(replay, recorder, settings)
    outcome = where.replay(proposed, _utc(start), _utc(end))
    rows = [msgspec.to_builtins(change) for change in outcome.changes if change.recorded != change.proposed]
    columns = ("channel", "src", "dst", "recorded", "proposed", "packets", "bytes")
    show_rows(rows, columns, json=json, empty="the new policy changes no recorded verdict")
    note(f"the new policy changes the verdict of {outcome.changed} of {outcome.packets} packets")


@app.command
def apply(
    file: Annotated[Path | None, Parameter(help="The new policy file; default: the node's own, read again.")] = None,
    /,
    *,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Apply a policy to a running node at one moment, without ending a session, and show what changed.

    The file is copied to the policy_file of the node, so that the next start uses it too. An invalid policy is refused,
    and the old one stays whole.
    """
    from meshbus.config.policyfile import read_policy

    if file is not None:
        read_policy(file)  # a mistake in the file is reported even if no node runs
    done = ask(admin, config, "policy_apply", path=None if file is None else str(file.absolute()), by=this_caller())
    rows = [{"change": one} for one in done["changes"]]
    show_rows(rows, ("change",), json=json, empty="applied; the new policy means the same as the old one")


@app.command
def sign(
    file: Annotated[Path, Parameter(help="Policy file; a signature that it has is replaced.")],
    /,
    *,
    as_version: Annotated[
        int, Parameter(help="Version of the policy; it must be higher than that of every earlier one.")
    ],
    out: Annotated[Path, Parameter(help="Write the signed policy to this file, which must not exist.")],
    identity: Signer = None,
    json: Json = False,
) -> None:
    """Sign a policy for a fleet. Nodes take it if your public key is one of their policy_issuers.

    Apply the result to one node with `meshbus policy apply`; the others get it from there.
    """
    from meshbus.cli.token import signer
    from meshbus.config.policyfile import body_of, read_policy, signed_content
    from meshbus.keyfile import create_file
    from meshbus.wire.messages.fleetpolicy import PolicyStatement

    body = body_of(read_policy(file).content)
    statement = PolicyStatement.sign(signer(identity), as_version, body)
    create_file(out, signed_content(statement, body).decode(), "policy")
    show_facts({"file": str(out), "version": statement.version, "issuer": statement.issuer.hex()}, json=json)


@app.command
def show(*, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """Show which policy a running node uses: its file, the hash of its content, and its version if it is signed."""
    show_facts(ask(admin, config, "policy"), json=json)


@app.command
def history(
    file: Annotated[Path | None, Parameter(help="The policy file; default: that of the configuration.")] = None,
    /,
    *,
    config: Config = None,
    limit: Limit = 20,
    json: Json = False,
) -> Exit:
    """Show who changed the policy, when and how; exits with status 1 if the audit log itself was edited."""
    from meshbus.config.node import history_of
    from meshbus.node.audit import AuditKind

    path = _own_audit(config) if file is None else history_of(file)
    return show_audit(path, AuditKind.POLICY, limit, json=json)


def _own_audit(config: Path | None) -> Path:
    from meshbus.cli.options import load_config
    from meshbus.errors import ConfigError

    settings = load_config(config)
    if settings.policy_file is None:
        raise ConfigError(
            "policy_file", "is not set; give the policy file as an argument, or set it in the configuration"
        )
    return settings.audit_path()


def _utc(time: datetime | None) -> datetime | None:
    from datetime import UTC

    return time if time is None or time.tzinfo else time.replace(tzinfo=UTC)
