"""Every verb, run as users run it: the installed program against nodes in other processes.

The commands of a lane of the table (tests/cli/verbcases.py) run once, several at a time, and each test looks at how one of
them ended.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_identity, create_psk
from meshbus.log.log import Redex
from meshbus.spark.lake.tablestore import Store
from tests.children import child
from tests.cli.conftest import Result
from tests.cli.running import SCRIPT, Running, running, until
from tests.cli.verbcases import IN_ORDER, LANES, NOT_JSON, Case
from tests.log.packets.making import numbered, open_recorder
from tests.patience import PATIENCE_S
from tests.web.scrape import get

pytestmark = pytest.mark.timeout(900)  # a lane has up to fifty commands, each of which takes seconds on a busy machine

AT_ONCE = 3
PAUSE_S = 0.2
"""Between two tries of a command that waits for another process."""
OLD = '[[channels]]\nname = "robots/pose"\nvisibility = "subnet-local"\n'
NEW = OLD.replace("subnet-local", "global")
CASES = [pytest.param(lane, place, id=case.name) for lane, cases in LANES.items() for place, case in enumerate(cases)]


class Fleet(NamedTuple):
    """The nodes, and what commands are told about them."""

    folder: Path
    nodes: dict[str, Running]
    words: Mapping[str, str]

    def run(self, arguments: str, lane: str = "other") -> Result:
        """Run a command as a user without any configuration, in the folder of a lane."""
        home = self.folder / lane
        home.mkdir(exist_ok=True)
        done = subprocess.run(
            [SCRIPT, *arguments.format(**self.words).split()],
            cwd=home,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def run_lane(self, lane: str) -> list[Result]:
        """Run the commands of a lane."""
        with ThreadPoolExecutor(1 if lane in IN_ORDER else AT_ONCE) as pool:
            return list(pool.map(lambda case: self._end(case, lane), LANES[lane]))

    def _end(self, case: Case, lane: str) -> Result:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            result = self.run(f"{case.verb} {case.rest}", lane)
            if not case.again or self.problem(case, result) is None or time.monotonic() > deadline:
                return result
            time.sleep(PAUSE_S)

    def problem(self, case: Case, result: Result) -> str | None:
        """Return in which way a command did not end as it should."""
        if result.code != case.code:
            return f"exits with {result.code}"
        if case.tells.replace("{me}", self.words["me"]) not in (result.out or result.err):
            return "says something else"
        if case.code not in {Exit.OK, Exit.PARTIAL} and result.err.count("\n") > 2:
            return "says more than a sentence, after at most one note about what was begun"
        return None


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MESHBUS_", "XDG_"))}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}


@contextmanager
def responder(fleet: Fleet, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Answer requests at the hub, in a process of its own."""
    command: list[str | Path] = [SCRIPT, "reply", *arguments, "--admin", fleet.nodes["hub"].admin]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with child(command, env=environment(fleet.folder), text=True, **pipes) as process:
        assert process.stderr is not None
        assert "answering requests on" in process.stderr.readline()
        yield process


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A hub with a peer that is away, and a leaf with a policy of its own."""
    folder = tmp_path_factory.mktemp("fleet")
    create_psk(folder / "mesh.key")
    create_identity(folder / "issuer.toml")
    away = f'[[peers]]\naddress = "127.0.0.1:9"\npublic_key = "{"11" * 32}"\nnode_id = "01"\n'
    secret = '[[channels]]\nname = "secret/door"\nrequire_token = true\n'
    logged = '[[channels]]\nprefix = "sensors/"\nlog = "published"\n'
    topic = '[[subscriptions]]\nprefix = "sensors/"\nlog = false\n'
    (folder / "leaf").mkdir()
    (folder / "leaf" / "policy.toml").write_text(OLD, "utf-8")
    with ExitStack() as stack:
        settings = 'name = "hub"\nlog_dir = "logs"\ndaemons_dir = "daemons"\nunlisted_channels = "open"\n'
        settings += 'issuer_key = "../issuer.toml"\njoin_bind = "127.0.0.1:0"\n'
        hub = stack.enter_context(running(folder / "hub", settings + away + secret + logged))
        peer = f'[[peers]]\naddress = "{hub.address}"\npublic_key = "{hub.public_key}"\n'
        settings = 'name = "leaf"\npolicy_file = "policy.toml"\nweb = { bind = "127.0.0.1:0" }\n'
        leaf = stack.enter_context(running(folder / "leaf", settings + peer + topic))
        words = {"hub": hub.admin, "leaf": leaf.admin, "none": str(folder / "none.sock")}
        words |= {"leaf_dir": str(folder / "leaf"), "me": prepare(folder)}
        fleet = Fleet(folder, {"hub": hub, "leaf": leaf}, words)
        for responses in (
            ("plan/route",),
            ("plan/upper", "--run", "tr a-z A-Z"),
            ("plan/fails", "--run", "sh -c 'exit 3'"),
        ):
            stack.enter_context(responder(fleet, *responses))
        until(lambda: fleet.run("ping hub --count 1 --admin {leaf}").code, lambda code: code == Exit.OK)
        yield fleet


def prepare(folder: Path) -> str:
    """Make the files that commands are about, and return the public key of me.toml."""
    for name in ("trust", "files", "tables"):
        (folder / name).mkdir()
    (folder / "trust" / "old.toml").write_text(OLD, "utf-8")
    (folder / "trust" / "new.toml").write_text(NEW, "utf-8")
    with Redex(folder / "files" / "logs", background=False) as redex:
        redex.open("sensors/a").append_batch([b"one", b"two"])
    recorder = open_recorder(folder / "files" / "records")
    recorder.take(**numbered(0, 10))
    recorder.close()
    talker = {"rank": 1, "origin": 5, "channels": 1, "events": 2, "bytes": 3}
    store = Store(folder / "tables" / "tables")
    store.table("gold.top_talkers").put_hour("2026-01-01T00", pa.Table.from_pylist([talker]), "x")
    return create_identity(folder / "trust" / "me.toml").entity_id.hex()


@pytest.fixture(scope="module")
def results(fleet: Fleet) -> Callable[[str], list[Result]]:
    """Returns how the commands of a lane ended; they run when somebody asks."""
    return cache(fleet.run_lane)


@pytest.mark.parametrize(("lane", "place"), CASES)
def test_a_verb_ends_as_it_should(lane: str, place: int, fleet: Fleet, results: Callable[[str], list[Result]]) -> None:
    case, result = LANES[lane][place], results(lane)[place]
    assert fleet.problem(case, result) is None, result
    assert "Traceback" not in result.err
    if not case.verb.startswith(NOT_JSON):
        assert all(isinstance(json.loads(line), dict) for line in result.out.splitlines())


def test_two_nodes_measure_what_goes_between_them(fleet: Fleet) -> None:
    with ThreadPoolExecutor(2) as pool:
        receiving = pool.submit(fleet.run, f"bench receive --timeout {PATIENCE_S} --admin {{leaf}}")
        sent = fleet.run(f"bench send --events 2000 --size 64 --wait {PATIENCE_S} --admin {{hub}}")
    received = receiving.result()
    assert (sent.code, received.code) == (Exit.OK, Exit.OK)
    assert (sent.row["events"], sent.row["subscribers"]) == (2000, 1)
    assert (received.row["events"], received.row["missing"], received.row["bytes"]) == (2000, 0, 128_000)
    assert set(received.row["latency_us"]) == {"p50", "p90", "p99", "p100"}


def test_a_responder_ends_after_its_count(fleet: Fleet) -> None:
    with responder(fleet, "plan/once", "done", "--count", "1") as process:
        assert fleet.run("req plan/once now --admin {leaf}").row["payload"] == "done"
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == Exit.OK
    assert json.loads(out)["payload"] == "now"


def test_a_machine_joins_by_an_invite_that_is_approved(fleet: Fleet) -> None:
    made, other = (fleet.run(f"invite --name rover-{n} --approval --admin {{hub}}").row for n in (1, 2))
    assert fleet.run(f"invite withdraw {other['invite']} --admin {{hub}}").row["state"] == "withdrawn"
    assert len(fleet.run("invite ls --admin {hub}").rows) == 2
    denied = fleet.run(f"join {other['token']} {other['address']} denied.toml")
    assert (denied.code, denied.err.count("\n")) == (Exit.DENIED, 1), denied
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(fleet.run, f"join {made['token']} {made['address']} rover.toml")
        until(lambda: fleet.run(f"invite approve {made['invite']} --admin {{hub}}").code, lambda code: code == Exit.OK)
        joined = joining.result()
    assert (joined.code, joined.row["name"]) == (Exit.OK, "rover-1"), joined
    gone = fleet.run(f"join {other['token']} 127.0.0.1:9 gone.toml")
    assert (gone.code, gone.err.count("\n")) == (Exit.UNREACHABLE, 1), gone


def test_a_node_that_runs_for_one_command_does_the_same(fleet: Fleet) -> None:
    (fleet.folder / "me.toml").write_text('psk_file = "mesh.key"\nephemeral = true\n', "utf-8")
    hub = fleet.nodes["hub"]
    way = f"--config {fleet.folder}/me.toml --connect {hub.address} --public-key {hub.public_key}"
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
    address = str(fleet.nodes["leaf"].status["web"]).removeprefix("http://")
    assert "meshbus_peers_away 0.0" in get(address, "/metrics").text
    assert get(address, "/readyz").status == 200


def test_a_context_stands_for_the_options_of_a_node(fleet: Fleet) -> None:
    assert fleet.run("ctx add here --admin {leaf}").code == Exit.OK
    assert fleet.run("ctx add there --admin {hub}").code == Exit.OK
    assert fleet.run("status --context there").row["name"] == "hub"
    assert fleet.run("replica status").code == Exit.OK  # verbs that only ask use it too
