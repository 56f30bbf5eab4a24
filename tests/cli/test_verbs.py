"""Every verb about a running node, run as users run it: the installed program against nodes in other processes.

The commands of the table run once, several at a time, and each test looks at how one of them ended.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from tests.children import child
from tests.cli.conftest import Result
from tests.cli.running import SCRIPT, Running, running, until
from tests.patience import PATIENCE_S
from tests.web.scrape import get

AT_ONCE = 3


class Case(NamedTuple):
    """A command, how it must end, and what it must print."""

    arguments: str
    """With {hub} and {leaf} for the admin sockets of two nodes, {none} for one that nobody serves."""
    code: Exit
    tells: str


CASES = {
    "status": Case("status --admin {leaf}", Exit.OK, '"name":"leaf"'),
    "status, unreachable": Case("status --admin {none}", Exit.UNREACHABLE, "start a node with `meshbus up`"),
    "status, bad argument": Case("status --admin", Exit.USAGE, "see `meshbus status --help`"),
    "status, a peer is away": Case("status --admin {hub}", Exit.PARTIAL, '"peers_away":1'),
    "counters": Case("counters --admin {leaf}", Exit.OK, '"counter":"sent.events"'),
    "counters, unreachable": Case("counters --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "counters, bad argument": Case("counters --jsn", Exit.USAGE, "see `meshbus counters --help`"),
    "channels": Case("channels --admin {hub}", Exit.OK, '"channel":"secret/door"'),
    "channels, by prefix": Case("channels secret/ --admin {hub}", Exit.OK, '"channel":"secret/door"'),
    "channels, unreachable": Case("channels --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "channels, bad argument": Case("channels a b --admin {hub}", Exit.USAGE, "see `meshbus channels --help`"),
    "ping": Case("ping hub --count 2 --interval 0.01 --admin {leaf}", Exit.OK, '"rtt_ms":'),
    "ping, the only peer": Case("ping --count 1 --admin {leaf}", Exit.OK, '"name":"hub"'),
    "ping, unknown name": Case(
        "ping rover --admin {leaf}", Exit.USAGE, "announced the name 'rover'; give its id instead"
    ),
    "ping, no session": Case("ping 00000000000000ff --admin {leaf}", Exit.UNREACHABLE, "00000000000000ff"),
    "ping, bad argument": Case("ping --count 0 --admin {leaf}", Exit.USAGE, "--count: must be at least 1, got 0"),
    "ping, unreachable": Case("ping --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "top": Case("top --count 2 --interval 0.05 --admin {leaf}", Exit.OK, '"received_events_per_s":'),
    "top, bad argument": Case("top --interval 0 --admin {leaf}", Exit.USAGE, "--interval: must be a positive number"),
    "top, unreachable": Case("top --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "req": Case("req plan/route from-a --admin {leaf}", Exit.OK, '"payload":"from-a"'),
    "req, a program": Case("req plan/upper from-a --node hub --admin {leaf}", Exit.OK, '"payload":"FROM-A"'),
    "req, a program that fails": Case("req plan/fails x --admin {leaf}", Exit.DENIED, "exited with status 3"),
    "req, nobody responds": Case("req plan/none x --admin {leaf}", Exit.DENIED, "plan/none"),
    "req, denied": Case("req secret/door open --admin {leaf}", Exit.DENIED, "secret/door"),
    "req, bad argument": Case("req Plan x --admin {leaf}", Exit.USAGE, "channel"),
    "req, bad timeout": Case(
        "req plan/route x --timeout -1 --admin {leaf}", Exit.USAGE, "--timeout: must be a positive"
    ),
    "req, unreachable": Case("req plan/route x --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "reply, bad argument": Case("reply plan/x text --run cat --admin {hub}", Exit.USAGE, "a request has one answer"),
    "reply, a second one": Case("reply plan/route --admin {hub}", Exit.FAILED, "already has a responder on this node"),
    "reply, unreachable": Case("reply plan/x --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "sub, denied": Case("sub secret/door --admin {leaf} --timeout 20", Exit.DENIED, "secret/door"),
    "pub, denied": Case("pub secret/door x --admin {hub} --wait 0", Exit.DENIED, "secret/door"),
    "bench receive, denied": Case("bench receive secret/door --admin {leaf}", Exit.DENIED, "secret/door"),
    "bench send, denied": Case("bench send secret/door --admin {hub} --wait 0.01", Exit.DENIED, "secret/door"),
    "bench send, nobody": Case(
        "bench send a/b --admin {leaf} --wait 0.01", Exit.PARTIAL, "start `meshbus bench receive`"
    ),
    "bench receive, nothing": Case(
        "bench receive --timeout 0.1 --admin {leaf}", Exit.UNREACHABLE, "no test began within"
    ),
    "bench, bad argument": Case("bench send --size 8 --admin {leaf}", Exit.USAGE, "--size: must be from 32 to"),
    "bench, unreachable": Case("bench send --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "policy show": Case("policy show --admin {leaf}", Exit.OK, '"policy_file":null'),
    "policy show, unreachable": Case("policy show --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "policy apply, no file": Case("policy apply --admin {leaf}", Exit.USAGE, "move the policy to a file of its own"),
    "policy apply, bad argument": Case("policy apply none.toml --admin {leaf}", Exit.USAGE, "the file does not exist"),
    "policy apply, unreachable": Case("policy apply --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "policy, bad argument": Case("policy aply", Exit.USAGE, "see `meshbus policy --help`"),
    "peers, unreachable": Case("peers --admin {none}", Exit.UNREACHABLE, "there is no such socket"),
    "ctx, unknown": Case("status --context nowhere", Exit.USAGE, "unknown context 'nowhere'"),
    "completion": Case("completion bash", Exit.OK, "meshbus"),
    "completion, bad argument": Case("completion tcsh", Exit.USAGE, "see `meshbus completion --help`"),
    "systemd": Case("systemd /etc/meshbus/node.toml --program /usr/bin/meshbus", Exit.OK, "NoNewPrivileges=yes"),
    "systemd, bad argument": Case("systemd node.toml", Exit.USAGE, "must be an absolute path"),
}


class Fleet(NamedTuple):
    """Two nodes, and the responders at one of them."""

    hub: Running
    leaf: Running
    folder: Path

    def run(self, arguments: str) -> Result:
        """Run a command as a user without any configuration."""
        places = {"hub": self.hub.admin, "leaf": self.leaf.admin, "none": str(self.folder / "none.sock")}
        done = subprocess.run(
            [SCRIPT, *arguments.format(**places).split()],
            env=environment(self.folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MESHBUS_", "XDG_"))}
    return {**kept, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}


@contextmanager
def responder(fleet: Fleet, *arguments: str) -> Iterator[None]:
    """Answer requests at the hub, in a process of its own."""
    command: list[str | Path] = [SCRIPT, "reply", *arguments, "--admin", fleet.hub.admin]
    with child(command, env=environment(fleet.folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"answering requests on" in process.stderr.readline()
        yield


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    create_psk(folder / "mesh.key")
    away = f'[[peers]]\naddress = "127.0.0.1:9"\npublic_key = "{"11" * 32}"\nnode_id = "01"\n'
    policy = '[[channels]]\nname = "secret/door"\nrequire_token = true\n'
    with (
        running(folder / "hub", f'name = "hub"\nunlisted_channels = "open"\n{away}{policy}') as hub,
        running(
            folder / "leaf",
            f'name = "leaf"\nweb = {{ bind = "127.0.0.1:0" }}\n[[peers]]\naddress = "{hub.address}"\npublic_key = "{hub.public_key}"\n',
        ) as leaf,
    ):
        fleet = Fleet(hub, leaf, folder)
        with (
            responder(fleet, "plan/route"),
            responder(fleet, "plan/upper", "--run", "tr a-z A-Z"),
            responder(fleet, "plan/fails", "--run", "sh -c 'exit 3'"),
        ):
            until(lambda: fleet.run("ping hub --count 1 --admin {leaf}").code, lambda code: code == Exit.OK)
            yield fleet


@pytest.fixture(scope="module")
def results(fleet: Fleet) -> dict[str, Result]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(fleet.run, [case.arguments for case in CASES.values()])
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_verb_ends_as_it_should(name: str, results: dict[str, Result]) -> None:
    case, result = CASES[name], results[name]
    assert result.code == case.code, result
    if case.code in {Exit.OK, Exit.PARTIAL} and result.out:
        assert case.tells in result.out
    else:
        assert result.out == ""
        assert result.err.count("\n") <= 2  # the sentence, after at most one note about what was begun
        assert case.tells in result.err
    if not name.startswith(("completion", "systemd")):
        for line in result.out.splitlines():
            assert isinstance(json.loads(line), dict)


def test_two_nodes_measure_what_goes_between_them(fleet: Fleet) -> None:
    with ThreadPoolExecutor(2) as pool:
        receiving = pool.submit(fleet.run, f"bench receive --timeout {PATIENCE_S} --admin {{leaf}}")
        sent = fleet.run(f"bench send --events 2000 --size 64 --wait {PATIENCE_S} --admin {{hub}}")
    received = receiving.result()
    assert (sent.code, received.code) == (Exit.OK, Exit.OK)
    assert (sent.row["events"], sent.row["subscribers"]) == (2000, 1)
    assert (received.row["events"], received.row["missing"], received.row["bytes"]) == (2000, 0, 128_000)
    assert set(received.row["latency_us"]) == {"p50", "p90", "p99", "p100"}


def test_a_node_that_runs_for_one_command_does_the_same(fleet: Fleet) -> None:
    (fleet.folder / "me.toml").write_text('psk_file = "mesh.key"\nephemeral = true\n', "utf-8")
    way = f"--config {fleet.folder}/me.toml --connect {fleet.hub.address} --public-key {fleet.hub.public_key}"
    commands = [
        "ping hub --count 1",
        "channels plan/",
        "req plan/route hi --raw",
        "status",
        "top --count 1 --interval 0.01",
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ping, channels, request, status, top = pool.map(fleet.run, [f"{command} {way}" for command in commands])
    assert [one.code for one in (ping, channels, request, status, top)] == [Exit.OK] * 5
    assert ping.row["name"] == "hub"
    assert channels.out == ""  # responders are no publishers
    assert request.out == "hi"
    assert status.row["peers"] == 1
    assert top.row["peers"][0]["name"] == "hub"


def test_a_node_with_web_serves_metrics_and_health(fleet: Fleet) -> None:
    address = str(fleet.leaf.status["web"]).removeprefix("http://")
    assert "meshbus_peers_away 0.0" in get(address, "/metrics").text
    assert get(address, "/readyz").status == 200


def test_a_context_stands_for_the_options_of_a_node(fleet: Fleet) -> None:
    assert fleet.run("ctx add here --admin {leaf}").code == Exit.OK
    assert fleet.run("ctx add there --admin {hub}").code == Exit.OK
    assert fleet.run("status").row["name"] == "leaf"
    assert fleet.run("status --context there").row["name"] == "hub"
    assert [row["context"] for row in fleet.run("ctx ls").rows] == ["here", "there"]
    assert fleet.run("replica status").code == Exit.OK  # verbs that only ask use it too
