"""A newcomer follows "How do I bring in a robot?" literally, on two machines; only the token goes from one to the other."""

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from tests.newcomer.machines import two_machines
from tests.newcomer.page import GUIDE, steps_of
from tests.patience import PATIENCE_S

PAGE = "bring-in-a-robot.md"
SCRIPTS = Path(sys.executable).parent
ADDRESSES = dict(re.findall(r"(robot|base) (?:has the address )?(10\.20\.0\.\d)", (GUIDE / PAGE).read_text("utf-8")))
AWAITED = {"meshbus pub": '"delivered":1', "meshbus invite ls": '"state":"used"'}

pytestmark = pytest.mark.slow


def test_the_page_leads_to_a_robot_in_the_fleet(tmp_path: Path) -> None:
    with ExitStack() as stack:
        machines = stack.enter_context(two_machines(tmp_path, ADDRESSES, SCRIPTS))
        folders = {name: machine.home for name, machine in machines.items()}
        printed: dict[str, list[str]] = {}
        running: list[subprocess.Popen[str]] = []
        token = ""
        for step in (one for one in steps_of(PAGE) if one.kind in {"sh", "toml"}):
            (name,) = step.machines
            machine = machines[name]
            if step.kind == "toml":
                (folders[name] / "node.toml").write_text(step.text, "utf-8")
                continue
            for line in step.text.splitlines():
                if line.startswith("meshbus up"):
                    process = stack.enter_context(machine.start(line, folders[name]))
                    assert process.stdout is not None
                    process.stdout.readline()
                    running.append(process)
                    continue
                verb = " ".join(line.split()[:2])
                out, folders[name] = machine.run(_patient(line.replace("TOKEN", token)), folders[name])
                printed.setdefault(verb, []).append(out)
                if verb == "meshbus invite" and not token:
                    token = json.loads(out)["token"]
        assert json.loads(printed["meshbus pub"][-1].splitlines()[-1])["delivered"] == 1
        (peer,) = map(json.loads, printed["meshbus peers"][-1].splitlines())
        assert (peer["name"], peer["secure"], peer["path"]) == ("rover-7", True, "direct")
        (invite,) = map(json.loads, printed["meshbus invite"][-1].splitlines())
        rows = [json.loads(line) for line in printed["meshbus audit"][-1].splitlines()]
        assert (invite["state"], [row["via"] for row in rows]) == ("used", ["invite", "join"])
        assert rows[1]["subject"] == invite["public_key"]
        for process in running:
            process.terminate()
            assert process.wait(timeout=PATIENCE_S) == Exit.OK


def _patient(line: str) -> str:
    """Repeat a command until it shows what comes a moment later: the subscription of the base, the end of the invite."""
    awaited = next((shown for begin, shown in AWAITED.items() if line.startswith(begin)), None)
    if awaited is None:
        return line
    return f"until {line} | tee shown | grep -q '{awaited}'; do sleep 0.1; done; cat shown"
