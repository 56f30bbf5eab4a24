"""`meshbus daemon` as users run it, against nodes that run as users run them."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from tests.children import child
from tests.cli.conftest import Meshbus, Result
from tests.cli.running import SCRIPT, Running, program, running, until
from tests.patience import PATIENCE_S

CODE = """
import logging

class Adder:
    def __init__(self):
        self.total = 0

    def process(self, event):
        self.total += int(event.payload)
        logging.getLogger("meshbus.daemon.adder").warning("the total is %d", self.total)
        return [str(self.total).encode()]

    def snapshot(self):
        return str(self.total).encode()

    def restore(self, state):
        self.total = int(state)
"""
SETTINGS = """
name = "{name}"
bind = "127.0.0.1:0"
log_dir = "logs"
daemons_dir = "daemons"
{peers}
[[channels]]
name = "numbers"
log = "published"

[[channels]]
name = "totals"
log = "published"
"""


class Ground:
    """A node that can run daemons, east, or two, and the directory with the code of one."""

    def __init__(self, stack: ExitStack, folder: Path, meshbus: Meshbus, *, two: bool) -> None:
        self.meshbus = meshbus
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / "adding.py").write_text(CODE, "utf-8")
        create_psk(folder / "mesh.key")
        self.east: Running = stack.enter_context(running(folder / "east", SETTINGS.format(name="east", peers="")))
        peers = f'[[peers]]\naddress = "{self.east.address}"\npublic_key = "{self.east.public_key}"\n'
        self.west = self.east
        if two:
            self.west = stack.enter_context(running(folder / "west", SETTINGS.format(name="west", peers=peers)))

    def ask(self, node: Running, *arguments: object) -> Result:
        """Run a command of `meshbus daemon` at a node."""
        return self.meshbus("daemon", *arguments, "--admin", node.admin)

    def command(self, node: Running, *arguments: object) -> Result:
        """The same in a process of its own, as users run it."""
        return program("daemon", *arguments, "--admin", node.admin)

    def run(self, node: Running, *arguments: object) -> Result:
        return self.command(node, "run", "adder", "adding:Adder", "--path", self.code, "--output", "totals", *arguments)

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            published = self.meshbus("pub", "numbers", number, "--admin", self.east.admin)
            assert published.code in {Exit.OK, Exit.LOGGED}, published

    def processed(self, node: Running, events: int) -> dict[str, Any]:
        """Wait until the adder has processed so many events on a node, and return its row."""
        row: dict[str, Any] = until(
            lambda: self.ask(node, "ls").row,
            lambda row: [one["next_seq"] for one in row["inputs"]] == [events] and row["state"] == "running",
        )
        return row


@pytest.fixture
def pair(tmp_path: Path, meshbus: Meshbus) -> Iterator[Ground]:
    with ExitStack() as stack:
        yield Ground(stack, tmp_path, meshbus, two=True)


@pytest.fixture
def lone(tmp_path: Path, meshbus: Meshbus) -> Iterator[Ground]:
    with ExitStack() as stack:
        yield Ground(stack, tmp_path, meshbus, two=False)


@pytest.mark.slow
def test_a_daemon_is_run_moved_watched_and_stopped(pair: Ground, request: pytest.FixtureRequest) -> None:
    started = pair.run(pair.east, "--input", "numbers")
    assert (started.code, started.row["where"]["name"], started.row["output"]) == (Exit.OK, "east", "totals")
    pair.publish(1, 2, 3)
    here = pair.processed(pair.east, 3)
    assert (here["name"], here["phase"], here["outputs"], here["moves"], here["errors"]) == ("adder", None, 3, 0, 0)
    assert here["inputs"] == [{"channel": "numbers", "publisher": here["where"], "next_seq": 3}]

    nobody = pair.ask(pair.east, "move", "adder", "--to", "west")
    assert (nobody.code, nobody.out) == (Exit.FAILED, "")
    assert "adder" in nobody.err or here["origin"] in nobody.err
    offered = pair.run(pair.west, "--offer")
    assert (offered.code, offered.row["state"]) == (Exit.OK, "offered")
    with child(
        [SCRIPT, "daemon", "logs", "adder", "--follow", "--admin", pair.west.admin], stdout=subprocess.PIPE, text=True
    ) as following:
        moved = pair.command(pair.east, "move", "adder", "--to", "west")
        assert moved.code == Exit.OK, moved
        assert (moved.row["source"]["name"], moved.row["target"]["name"]) == ("east", "west")
        pair.publish(4)
        assert following.stdout is not None
        told = next(row for row in map(json.loads, following.stdout) if "the total is 10" in row["text"])
        assert told["level"] == "warning"
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_S) == Exit.INTERRUPTED
    there = pair.processed(pair.west, 4)
    assert (there["where"]["name"], there["outputs"], there["moves"]) == ("west", 4, 1)
    left = pair.command(pair.east, "ls").row
    assert (left["state"], left["where"]["name"]) == ("moved", "west")
    texts = [row["text"] for row in pair.command(pair.east, "logs", "adder").rows]
    assert sum("runs here" in text for text in texts) == 1
    assert sum("moved from" in text for text in texts) == 1

    # Without a target it goes to the nearest node that offers it.
    back = pair.ask(pair.west, "move", "adder")
    assert (back.code, back.row["target"]["name"]) == (Exit.OK, "east")
    assert pair.processed(pair.east, 4)["moves"] == 2

    request.getfixturevalue("terminal")
    table = pair.ask(pair.east, "ls")
    assert table.code == Exit.OK
    assert "numbers@east from 4" in table.out
    assert "runs here" in pair.ask(pair.east, "logs", "adder").out
    stopped = pair.command(pair.east, "stop", "adder")
    assert (stopped.code, stopped.out) == (Exit.OK, "")
    assert "its checkpoint stays" in stopped.err
    assert "stopped" in pair.ask(pair.east, "ls").out
    again = pair.run(pair.east, "--input", "numbers")
    assert (again.code, again.row["where"]["name"]) == (Exit.OK, "east")


@pytest.mark.slow
def test_what_is_wrong_is_said_with_what_to_do(lone: Ground) -> None:
    assert lone.ask(lone.east, "ls") == (Exit.OK, "", "")
    for arguments, code, told in (
        (("logs", "nobody"), Exit.USAGE, "'nobody' is not known to this node; run or offer it first"),
        (("stop", "nobody"), Exit.USAGE, "'nobody' is not known to this node; run or offer it first"),
        (("move", "nobody", "--to", "nowhere"), Exit.USAGE, "announced the name 'nowhere'; give its id instead"),
        (("move", "nobody", "--timeout", "0"), Exit.USAGE, "--timeout: must be positive, got 0"),
        (("run", "adder", "adding"), Exit.USAGE, "must be 'module:factory', such as 'detector:Detector', got 'adding'"),
        (("run", "adder", "missing:Adder"), Exit.USAGE, "cannot be loaded"),
        (("run", "a b", "adding:Adder"), Exit.USAGE, "letters, digits"),
    ):
        refused = lone.ask(lone.east, *arguments)
        assert (refused.code, refused.out, refused.err.count("\n")) == (code, "", 1), refused
        assert told in refused.err
    unlogged = lone.ask(lone.east, "run", "adder", "adding:Adder", "--path", lone.code, "--input", "other")
    assert (unlogged.code, 'set log = "published"' in unlogged.err) == (Exit.USAGE, True)

    # A daemon that fails is shown with its error.
    assert lone.run(lone.east, "--input", "numbers").code == Exit.OK
    published = lone.meshbus("pub", "numbers", "many", "--admin", lone.east.admin)
    assert published.code == Exit.LOGGED
    shown = until(lambda: lone.ask(lone.east, "ls"), lambda shown: shown.code == Exit.PARTIAL)
    assert shown.row["state"] == "failed"
    assert shown.row["errors"] > 0
    assert "invalid literal" in shown.row["error"]
    assert any("invalid literal" in row["text"] for row in lone.ask(lone.east, "logs", "adder").rows)


def test_a_node_without_a_directory_for_daemons_says_what_is_needed(meshbus: Meshbus, tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as node:
        refused = meshbus("daemon", "run", "adder", "adding:Adder", "--admin", node.admin)
        assert (refused.code, refused.out) == (Exit.USAGE, "")
        assert "daemons_dir: is not set, so this node runs no daemons; set it to a directory" in refused.err


@pytest.mark.parametrize("command", [("ls",), ("logs", "adder"), ("stop", "adder"), ("move", "adder")])
def test_a_node_that_does_not_run_is_unreachable(meshbus: Meshbus, tmp_path: Path, command: tuple[str, ...]) -> None:
    result = meshbus("daemon", *command, "--admin", tmp_path / "nobody.sock")
    assert (result.code, result.out) == (Exit.UNREACHABLE, "")
    assert "start a node with `meshbus up`" in result.err
