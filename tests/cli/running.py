"""Nodes that run as users run them: `meshbus up` in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.children import child
from tests.cli.conftest import Result
from tests.patience import PATIENCE_S

SCRIPT = Path(sys.executable).with_name("meshbus")
QUICK = "handshake_timeout_s = 0.5\n"


class Running(NamedTuple):
    """A node in another process."""

    process: subprocess.Popen[str]
    status: dict[str, Any]
    """What it said when it started."""

    @property
    def admin(self) -> str:
        return str(self.status["admin_socket"])

    @property
    def address(self) -> str:
        return str(self.status["address"])

    @property
    def public_key(self) -> str:
        return str(self.status["public_key"])

    def notice(self, name: str) -> dict[str, Any]:
        """Wait until it tells that something happened."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            row: dict[str, Any] = json.loads(line)
            if row.get("notice") == name:
                return row
        raise AssertionError(f"the node ended before {name}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it; return its exit code and what it said beside its results."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


@contextmanager
def running(folder: Path, settings: str = "", *arguments: str) -> Iterator[Running]:
    """Run a node whose mesh key is `mesh.key` beside its folder."""
    folder.mkdir(exist_ok=True)
    config = folder / "node.toml"
    config.write_text(
        f'identity = "id.toml"\npsk_file = "../mesh.key"\nadmin_socket = "run/admin.sock"\n{QUICK}{settings}', "utf-8"
    )
    with started([SCRIPT, "up", config, *arguments]) as node:
        yield node


@contextmanager
def started(command: Sequence[str | Path]) -> Iterator[Running]:
    """Run a command that prints the status of a node first."""
    with child(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MESHBUS_")},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield Running(process, json.loads(line))


def program(*arguments: object) -> Result:
    """Run a command as a user without any configuration, in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MESHBUS_")}
    command = [str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def until(look: Callable[[], Any], holds: Callable[[Any], object]) -> Any:
    """Look until something holds that nobody tells us about."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.05)
    return found
