"""A newcomer follows "How do I connect two machines?" literally, on two machines."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from tests.newcomer.machines import Machine, two_machines
from tests.newcomer.page import GUIDE, Step, steps_of

PAGE = "two-machines.md"
SCRIPTS = Path(sys.executable).parent
ADDRESSES = dict(re.findall(r"(robot|base) (?:has the address )?(10\.20\.0\.\d)", (GUIDE / PAGE).read_text("utf-8")))

pytestmark = pytest.mark.slow


class Newcomer:
    """Somebody who does what the page says, and types nothing else but the key that it asks for."""

    def __init__(self, machines: dict[str, Machine], stack: ExitStack) -> None:
        self._machines = machines
        self._stack = stack
        self.folders = {name: machine.home for name, machine in machines.items()}
        self.printed: dict[str, list[str]] = {name: [] for name in machines}
        self.running: dict[str, subprocess.Popen[str]] = {}
        self._key = ""

    def follow(self, step: Step) -> None:
        """Do one block on the machines that it is for."""
        for name in step.machines:
            if step.kind == "toml":
                text = step.text.replace("PUBLIC KEY OF THE ROBOT", self._key)
                (self.folders[name] / "node.toml").write_text(text, "utf-8")
            else:
                assert step.kind == "sh", f"{PAGE}:{step.line} is for nobody"
                self._type(name, step.text)
        if "Copy `mesh.key` to the folder of the base" in step.before:
            shutil.copy2(self.folders["robot"] / "mesh.key", self.folders["base"] / "mesh.key")

    def _type(self, name: str, text: str) -> None:
        machine = self._machines[name]
        for line in text.splitlines():
            if line.startswith("meshbus up"):
                process = self._stack.enter_context(machine.start(line, self.folders[name]))
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["name"] == name
                self.running[name] = process
                continue
            out, self.folders[name] = machine.run(line, self.folders[name])
            self.printed[name].append(out)
            if name == "robot" and line.startswith("meshbus key new"):
                self._key = json.loads(out)["public_key"]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    with two_machines(tmp_path, ADDRESSES, SCRIPTS) as made:
        yield made


def test_the_page_leads_to_a_base_that_records_what_the_robot_publishes(machines: dict[str, Machine]) -> None:
    with ExitStack() as stack:
        newcomer = Newcomer(machines, stack)
        for step in steps_of(PAGE):
            newcomer.follow(step)
        report = json.loads(newcomer.printed["robot"][-1])
        assert (report["attempted"], report["delivered"]) == (1, 1)
        (peer,) = [json.loads(line) for line in newcomer.printed["base"][-2].splitlines()]
        assert (peer["name"], peer["health"]) == ("robot", "alive")
        (event,) = [json.loads(line) for line in newcomer.printed["base"][-1].splitlines()]
        assert event["payload"] == "battery 87 %"
        for process in newcomer.running.values():
            process.terminate()
            assert process.wait(timeout=30) == Exit.OK


@pytest.mark.parametrize(
    ("mistake", "prints", "counts"),
    [
        ("no node there", "no program listens at 10.20.0.1:9000", None),
        ("another mesh key", "no answer from 10.20.0.1:9000", "drop.handshake_unverified"),
        ("another public key", "no answer from 10.20.0.1:9000", "drop.transit_stranger"),
    ],
)
def test_the_page_tells_mistakes_apart(
    machines: dict[str, Machine], mistake: str, prints: str, counts: str | None
) -> None:
    robot, base = machines["robot"], machines["base"]
    with ExitStack() as stack:
        newcomer = Newcomer(machines, stack)
        steps = steps_of(PAGE)
        for step in steps[:4]:
            newcomer.follow(step)
        if mistake != "no node there":
            newcomer.follow(steps[4])
        mesh = newcomer.folders["base"]
        if mistake == "another mesh key":
            base.run("rm mesh.key && meshbus key psk mesh.key", mesh)
        if mistake == "another public key":
            newcomer._key = json.loads(base.run("meshbus key new other.toml", mesh)[0])["public_key"]
        newcomer.follow(steps[5])
        process = stack.enter_context(base.start("meshbus up node.toml", mesh))
        assert process.stdout is not None
        process.stdout.readline()
        rows = map(json.loads, process.stdout)
        problem = next(row["problem"] for row in rows if row["notice"] == "peer_unreachable")
        assert prints in problem
        assert newcomer._key in problem or counts is None
        if counts is not None:
            assert counts in problem
            out, _ = robot.run("meshbus counters --admin run/admin.sock", newcomer.folders["robot"])
            assert {row["counter"] for row in map(json.loads, out.splitlines())} >= {counts}
