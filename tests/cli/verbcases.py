"""Every command as a user types it, and how it must end: a table that tests/cli/test_verbs.py runs with the installed program.

tests/house/test_verbs.py fails for a command of `meshbus` that has no case for success, a bad argument, and, if it reaches a
node, an unreachable and a denying one; or a reason here why it cannot have it.

The commands of a lane run in a folder of their own. Those in IN_ORDER use what earlier ones of their lane made.
"""

from enum import StrEnum
from typing import NamedTuple

from meshbus.cli.exit import Exit


class Kind(StrEnum):
    """What a case is about."""

    SUCCESS = "success"
    BAD_ARGUMENT = "bad argument"
    UNREACHABLE = "unreachable"
    DENIED = "denied"
    PARTIAL = "partial"
    """It works, and something is missing."""


class Case(NamedTuple):
    """A command, how it must end, and what it must print."""

    verb: str
    kind: Kind
    rest: str
    """What follows the verb: with {hub} and {leaf} for the admin sockets of two nodes, {none} for one that nobody serves,
    {leaf_dir} for the folder of a node, and {me} for the public key of me.toml."""
    code: Exit
    tells: str
    again: bool = False
    """Whether it runs until it ends so: what it needs happens a moment later, in another process."""

    @property
    def name(self) -> str:
        return f"{self.verb}, {self.kind}: {self.rest}"


def ok(verb: str, rest: str, tells: str, *, again: bool = False) -> Case:
    return Case(verb, Kind.SUCCESS, rest, Exit.OK, tells, again)


def bad(verb: str, rest: str, tells: str, code: Exit = Exit.USAGE) -> Case:
    return Case(verb, Kind.BAD_ARGUMENT, rest, code, tells)


def denied(verb: str, rest: str, tells: str) -> Case:
    return Case(verb, Kind.DENIED, rest, Exit.DENIED, tells)


def gone(verb: str, rest: str = "") -> Case:
    """Return what happens if the node is not there."""
    return Case(verb, Kind.UNREACHABLE, f"{rest} --admin {{none}}".strip(), Exit.UNREACHABLE, "there is no such socket")


def unknown_option(verb: str) -> Case:
    return bad(verb, "--jsn", f"see `meshbus {verb} --help`")


_KEY = "11" * 32

LANES: dict[str, tuple[Case, ...]] = {
    "asking": (
        ok("status", "--admin {leaf}", '"name":"leaf"'),
        gone("status"),
        bad("status", "--admin", "see `meshbus status --help`"),
        Case("status", Kind.PARTIAL, "--admin {hub}", Exit.PARTIAL, '"peers_away":1'),
        ok("counters", "--admin {leaf}", '"counter":"sent.events"'),
        gone("counters"),
        unknown_option("counters"),
        ok("peers", "--admin {leaf}", '"name":"hub"'),
        gone("peers"),
        unknown_option("peers"),
        ok("channels", "--admin {hub}", '"channel":"secret/door"'),
        ok("channels", "secret/ --admin {hub}", '"channel":"secret/door"'),
        gone("channels"),
        bad("channels", "a b --admin {hub}", "see `meshbus channels --help`"),
        ok("ping", "hub --count 2 --interval 0.01 --admin {leaf}", '"rtt_ms":'),
        ok("ping", "--count 1 --admin {leaf}", '"name":"hub"'),
        bad("ping", "rover --admin {leaf}", "announced the name 'rover'; give its id instead"),
        Case("ping", Kind.UNREACHABLE, "00000000000000ff --admin {leaf}", Exit.UNREACHABLE, "00000000000000ff"),
        bad("ping", "--count 0 --admin {leaf}", "--count: must be at least 1, got 0"),
        gone("ping"),
        ok("top", "--count 2 --interval 0.05 --admin {leaf}", '"received_events_per_s":'),
        bad("top", "--interval 0 --admin {leaf}", "--interval: must be a positive number"),
        gone("top"),
        ok("req", "plan/route from-a --admin {leaf}", '"payload":"from-a"'),
        ok("req", "plan/upper from-a --node hub --admin {leaf}", '"payload":"FROM-A"'),
        denied("req", "plan/fails x --admin {leaf}", "exited with status 3"),
        denied("req", "plan/none x --admin {leaf}", "plan/none"),
        denied("req", "secret/door open --admin {leaf}", "secret/door"),
        bad("req", "Plan x --admin {leaf}", "channel"),
        bad("req", "plan/route x --timeout -1 --admin {leaf}", "--timeout: must be a positive"),
        gone("req", "plan/route x"),
        bad("reply", "plan/x text --run cat --admin {hub}", "a request has one answer"),
        bad("reply", "plan/route --admin {hub}", "already has a responder on this node", Exit.FAILED),
        gone("reply", "plan/x"),
    ),
    "events": (
        ok("pub", "sensors/a 1 2 --admin {hub}", '"delivered":1', again=True),
        ok("sub", "sensors/a --since first --count 2 --admin {leaf}", '"payload":"2"', again=True),
        denied("pub", "secret/door x --admin {hub} --wait 0", "secret/door"),
        denied("sub", "secret/door --admin {leaf} --timeout 20", "secret/door"),
        gone("pub", "sensors/a x"),
        gone("sub", "sensors/a"),
        bad("pub", "Sensors x --admin {hub}", "channel"),
        bad("sub", "sensors/a --when-full sometimes --admin {leaf}", "see `meshbus sub --help`"),
        denied("bench receive", "secret/door --admin {leaf}", "secret/door"),
        denied("bench send", "secret/door --admin {hub} --wait 0.01", "secret/door"),
        Case(
            "bench send",
            Kind.PARTIAL,
            "a/b --admin {leaf} --wait 0.01",
            Exit.PARTIAL,
            "start `meshbus bench receive`",
        ),
        Case(
            "bench receive",
            Kind.UNREACHABLE,
            "--timeout 0.1 --admin {leaf}",
            Exit.UNREACHABLE,
            "no test began within",
        ),
        bad("bench receive", "--timeout 0 --admin {leaf}", "--timeout: must be a positive"),
        gone("bench receive"),
        bad("bench send", "--size 8 --admin {leaf}", "--size: must be from 32 to"),
        gone("bench send"),
        ok("bench local", "--events 200 --size 64", '"events":200'),
        bad("bench local", "--size 1", "--size: must be from 32 to"),
    ),
    "daemons": (
        bad("daemon run", "adder adding --admin {hub}", "must be 'module:factory'"),
        gone("daemon run", "adder adding:Adder"),
        unknown_option("daemon ls"),
        gone("daemon ls"),
        bad("daemon logs", "nobody --admin {hub}", "is not known to this node"),
        gone("daemon logs", "adder"),
        bad("daemon move", "adder --timeout 0 --admin {hub}", "--timeout: must be positive, got 0"),
        gone("daemon move", "adder"),
        bad("daemon stop", "nobody --admin {hub}", "is not known to this node"),
        gone("daemon stop", "adder"),
        ok("replica status", "--admin {hub}", ""),
        unknown_option("replica status"),
        gone("replica status"),
        bad("replica add", "alarms --admin {hub}", "see `meshbus replica add --help`"),
        gone("replica add", "alarms leaf"),
        bad("replica verify", "other --admin {hub}", "is not replicated; set replicas"),
        gone("replica verify", "alarms"),
        bad("replica transfer", "other leaf --admin {hub}", "is not replicated; set replicas"),
        gone("replica transfer", "alarms leaf"),
        bad("replica remove", "other leaf --admin {hub}", "is not replicated; set replicas"),
        gone("replica remove", "alarms leaf"),
    ),
    "trust": (
        ok("pins ls", "--admin {leaf}", '"name":"hub"', again=True),
        unknown_option("pins ls"),
        gone("pins ls"),
        ok("pins reset", "hub --admin {leaf}", "removed 1 pin"),
        bad("pins reset", "--admin {leaf}", "give either a node or --all"),
        gone("pins reset", "hub"),
        ok("revoke ls", "--admin {hub}", ""),
        unknown_option("revoke ls"),
        gone("revoke ls"),
        bad(
            "revoke", "{me} --publish --subscribe --reason x --identity me.toml --admin {hub}", "give one of --publish"
        ),
        bad("revoke", "{me} --reason x --identity me.toml --admin {hub}", "policy_issuers: is not set"),
        gone("revoke", "{me} --reason x --identity me.toml"),
        ok("policy show", "--admin {hub}", '"policy_file":null'),
        unknown_option("policy show"),
        gone("policy show"),
        ok("policy apply", "new.toml --admin {leaf}", '"change":'),
        bad("policy apply", "--admin {hub}", "move the policy to a file of its own"),
        bad("policy apply", "none.toml --admin {leaf}", "the file does not exist"),
        gone("policy apply"),
        ok("rotate psk", "--admin {leaf}", ""),
        bad("rotate psk", "none.key --admin {leaf}", "the file does not exist"),
        gone("rotate psk"),
        ok("rotate tokens", "--admin {leaf}", ""),
        unknown_option("rotate tokens"),
        gone("rotate tokens"),
        ok("rotate identity", "--admin {leaf}", '"change":"the key'),
        bad("rotate identity", "--identity none.toml --admin {leaf}", "the file does not exist"),
        gone("rotate identity"),
        ok("policy validate", "old.toml new.toml", '"valid":true'),
        bad("policy validate", "none.toml", '"valid":false'),
        ok("policy diff", "new.toml --old old.toml", '"change":'),
        bad("policy diff", "none.toml", "the file does not exist"),
        ok("policy sign", "old.toml --as-version 1 --out signed.toml --identity me.toml", '"version":1'),
        bad("policy sign", "old.toml --as-version 0 --out zero.toml --identity me.toml", "must be from 1 to"),
        ok("policy history", "{leaf_dir}/policy.toml", '"via":"apply"'),
        bad("policy history", "{leaf_dir}/policy.toml --limit -1", "--limit: must be 0 or more"),
        ok("audit", "--config {leaf_dir}/node.toml", '"via":"apply"'),
        bad("audit", "--kind rumor", "unknown kind 'rumor'; choose from"),
        bad("invite", "--name rover-7 --admin {leaf}", "issuer_key: is not set, so this node cannot invite others"),
        bad("invite", "--name x --ttl soon --admin {hub}", "--ttl: expected a number and s, m, h or d"),
        gone("invite", "--name x"),
        unknown_option("invite ls"),
        gone("invite ls"),
        bad("invite approve", "zz --admin {hub}", "as `meshbus invite ls` shows it"),
        gone("invite approve", "zz"),
        bad("invite withdraw", "zz --admin {hub}", "as `meshbus invite ls` shows it"),
        gone("invite withdraw", "zz"),
        bad("join", "mbj1_abc 10.0.0.7:9000", "token: is not a token of an invite"),
        ok("token issue", "{me} sensors/a --allow subscribe delegate --depth 1 --identity me.toml --out a.token", '"'),
        bad("token issue", "{me} --allow subscribe --identity me.toml", "give either a channel or --every-channel"),
        ok("token delegate", f"a.token {_KEY} --allow subscribe --identity me.toml --out b.token", '"'),
        bad("token delegate", f"none.token {_KEY} --allow subscribe --identity me.toml", "none.token"),
        ok("token show", "b.token", '"issuer":"{me}"'),
        bad("token show", "none.token", "none.token"),
        ok("token verify", "b.token --issuer {me}", '"valid":true'),
        denied("token verify", f"b.token --issuer {_KEY}", '"valid":false'),
        bad("token verify", "b.token --issuer 11", "64 hex digits"),
        ok("token revoke", "{me} 1 --admin {leaf}", "revoked"),
        bad("token revoke", "11 1 --admin {leaf}", "64 hex digits"),
        gone("token revoke", "{me} 1"),
    ),
    "files": (
        ok("key new", "id.toml", '"identity":"id.toml"'),
        bad("key new", "id.toml", "exists"),
        ok("key show", "id.toml", '"node_id":'),
        bad("key show", "none.toml", "none.toml"),
        ok("key psk", "mesh.key", '"psk_file":"mesh.key"'),
        bad("key psk", "mesh.key", "exists"),
        ok("new", "node.toml --name robot --psk-file mesh.key", "node.toml"),
        bad("new", "other.toml --bind nowhere", "bind"),
        ok("config show", "node.toml", '"value":"robot"'),
        bad("config show", "none.toml", "none.toml"),
        ok("check", "node.toml", '"check":"configuration"'),
        bad("check", "--set heartbeat_s", "expected key=value", Exit.FAILED),
        ok("log ls", "logs", '"channel":"sensors/a"'),
        bad("log ls", "none", "none is not a folder of logs; check the path"),
        ok("log cat", "logs sensors/a", '"payload":"two"'),
        bad("log cat", "logs Sensors", "channel"),
        ok("log tail", "logs sensors/a --since 1 --count 1", '"payload":"two"'),
        bad("log tail", "logs sensors/a --count many", "see `meshbus log tail --help`"),
        ok("log verify", "logs", ""),
        bad("log verify", "logs sensors/b", "sensors/b"),
        ok("log schema", "logs sensors/a --codec utf8", '"codec":"utf8"'),
        bad("log schema", "logs sensors/a --codec morse", "unknown codec 'morse'; choose from"),
        ok("log seal", "logs sensors/a", '"sealed_events":2'),
        bad("log seal", "logs sensors/b", "sensors/b"),
        ok("packets ls", "records", '"next":10'),
        bad("packets ls", "", "see `meshbus packets ls --help`"),
        ok("packets cat", "records --limit 1", '"verdict":'),
        bad("packets cat", "records --limit 0", "--limit: must be at least 1, got 0"),
        bad("ctx add", "here", "give one of --admin, --config and --connect"),
        ok("ctx add", "here --admin {leaf}", "context here added"),
        bad("ctx use", "nowhere", "unknown context 'nowhere'"),
        ok("ctx use", "here", "the current context is here"),
        ok("ctx ls", "", '"context":"here"'),
        unknown_option("ctx ls"),
        ok("ctx show", "here", '"context":"here"'),
        bad("ctx show", "nowhere", "unknown context 'nowhere'"),
        ok("status", "", '"name":"leaf"'),  # by the context
        bad("status", "--context nowhere", "unknown context 'nowhere'"),
        ok("ctx off", "", "no context is in use"),
        bad("ctx off", "here", "see `meshbus ctx off --help`"),
        ok("ctx rm", "here", "context here deleted"),
        bad("ctx rm", "here", "unknown context 'here'"),
        ok("completion", "bash", "meshbus"),
        bad("completion", "tcsh", "see `meshbus completion --help`"),
        ok("systemd", "/etc/meshbus/node.toml --program /usr/bin/meshbus", "NoNewPrivileges=yes"),
        bad("systemd", "node.toml", "must be an absolute path"),
        bad("up", "--bind nowhere", "bind"),
        bad("demo", "--seconds 0", "--seconds: must be in (0, 600], got 0"),
    ),
    "tables": (
        ok("pipeline report", "tables", '"report":"tables/report.html"'),
        bad("pipeline report", "none", "run 'meshbus pipeline run' first", Exit.FAILED),
        ok("pipeline stop", "tables", "no pipeline is running on tables"),
        bad("pipeline stop", "tables --timeout-s soon", "see `meshbus pipeline stop --help`"),
        bad("pipeline status", "tables", "no pipeline has run on tables", Exit.FAILED),
        bad("pipeline run", "none.toml", "cannot be read"),
        bad("pipeline check", "--master", "see `meshbus pipeline check --help`"),
        bad("pipeline replay", "tables --policy none.toml", "none.toml"),
        bad("pipeline repair", "none.toml", "none.toml"),
        bad("pipeline rebuild", "none.toml --from 2026-01-02 --to 2026-01-01", "none.toml"),
    ),
}
IN_ORDER = {"events", "files", "trust"}
"""Lanes whose commands run one after the other."""
NOT_JSON = ("completion", "systemd")
"""Commands whose output is for a shell or for systemd."""

_OWN = "it asks its own node, which answers whoever can open its socket"
_NO_NODE = "it reaches no node"
_JOINING = "tests/cli/test_verbs.py::test_a_machine_joins_by_an_invite_that_is_approved"
_SPARK = "tests/soak/test_verbs.py::test_the_commands_of_a_pipeline"
WHY_NOT: dict[str, dict[Kind, str]] = {
    "up": {Kind.UNREACHABLE: _NO_NODE, Kind.DENIED: _NO_NODE},
    "ctx add": {Kind.UNREACHABLE: _NO_NODE, Kind.DENIED: _NO_NODE},
    "reply": {Kind.DENIED: "a node may answer on every channel; who asks is judged"},
    "daemon move": {Kind.DENIED: "a node that does not offer the daemon is an error of its own, in tests/cli/test_daemon.py"},
    **{
        verb: {Kind.DENIED: _OWN}
        for verb in (
            "status", "counters", "peers", "channels", "ping", "top", "pins ls", "pins reset", "policy show", "policy apply",
            "rotate psk", "rotate tokens", "rotate identity",
            "token revoke", "revoke ls", "daemon run", "daemon ls", "daemon logs", "daemon stop", "replica status", "replica add",
            "replica remove", "replica transfer", "replica verify", "invite", "invite ls", "invite approve",
            "invite withdraw",
        )
    },
}  # fmt: skip
"""Cases that a command cannot have, and why."""

ELSEWHERE: dict[str, dict[Kind, str]] = {
    "up": {Kind.SUCCESS: "tests/cli/test_up.py::test_a_node_starts_prints_its_addresses_and_stops"},
    **{verb: {Kind.SUCCESS: _JOINING} for verb in ("invite", "invite ls", "invite approve", "invite withdraw", "join")},
    "demo": {Kind.SUCCESS: "tests/cli/test_demo.py::test_the_printed_files_exist"},
    "reply": {Kind.SUCCESS: "tests/cli/test_verbs.py::test_a_responder_ends_after_its_count"},
    "revoke": {
        Kind.SUCCESS: "tests/cli/test_revoke.py::test_a_publisher_a_subscriber_and_a_node_are_cut_everywhere_and_stay_so",
        Kind.DENIED: "tests/cli/test_revoke.py::test_a_token_is_revoked_by_its_file_and_by_an_issuer_only",
    },
    **{
        f"bench {side}": {Kind.SUCCESS: "tests/cli/test_verbs.py::test_two_nodes_measure_what_goes_between_them"}
        for side in ("receive", "send")
    },
    **{
        f"daemon {verb}": {Kind.SUCCESS: "tests/cli/test_daemon.py::test_a_daemon_is_run_moved_watched_and_stopped"}
        for verb in ("run", "ls", "move", "logs", "stop")
    },
    **{
        f"replica {verb}": {Kind.SUCCESS: "tests/cli/test_replica.py::test_members_are_shown_changed_and_compared"}
        for verb in ("add", "remove", "transfer", "verify")
    },
    "pipeline run": {
        Kind.SUCCESS: "tests/cli/test_pipeline.py::test_from_a_log_to_tables_and_a_report_without_a_system_java"
    },
    **{f"pipeline {verb}": {Kind.SUCCESS: _SPARK} for verb in ("check", "status", "replay", "repair", "rebuild")},
}
"""Tests that run the program for a case which needs more than one command."""
