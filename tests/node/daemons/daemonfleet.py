"""A daemon that moves between real processes on loopback, with a bad network between them, and processes that are killed.

Node 0 publishes numbers; the daemon counts them on the others, and publishes what it counts. Every node dials those before
it through a proxy. All hold the history of the daemon. In the end what all logs have, all copies of the history, and the
state in the only active record are compared with a daemon that ran alone (tests/compute/counter.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from meshbus.compute.store import Status
from meshbus.keyfile import load_or_create
from meshbus.log.once import BATCH, PLACE
from meshbus.log.reader import LogReader
from meshbus.node.daemons.daemonfiles import DaemonFiles
from meshbus.wire.messages.checkpoint import Checkpoint, decode_checkpoint
from meshbus.wire.messages.snapshot import decode_snapshot
from tests.children import child
from tests.compute.counter import run_alone
from tests.house.tree import ROOT
from tests.node.daemons.daemonchild import DAEMON, INPUT, OUTPUT, digest_of
from tests.node.replicas.replicafleet import BadNet, _free_ports
from tests.patience import PATIENCE_S


class Process:
    """One node."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.folder = folder / f"n{number}"
        self.process: subprocess.Popen[str] | None = None
        self.status: dict[str, Any] = {}
        self.counters: dict[str, dict[str, int]] = {}
        self.history: dict[str, Any] = {}
        self.lines: list[str] = []
        self.answers = 0
        self.moved = 0
        self.fed = 0
        self.failed: list[str] = []
        self.ready = threading.Event()
        self._stack = ExitStack()

    @property
    def id(self) -> int:
        return load_or_create(self.folder / "id.toml").node_id

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.node.daemons.daemonchild", str(self.folder / "settings.json")]
        self.ready.clear()
        self.process = self._stack.enter_context(
            child(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def do(self, *command: object) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has just died, as it was told to

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.buried()

    def buried(self) -> None:
        """Wait until the process has died."""
        assert self.process is not None
        self.process.wait(PATIENCE_S)
        self._stack.close()
        self.process = None

    def stop(self) -> None:
        self.do("quit")
        self.buried()

    def close(self) -> None:
        self._stack.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                match json.loads(line):
                    case {"up": _}:
                        self.ready.set()
                    case {"moved": _}:
                        self.moved += 1
                    case {"fed": batches}:
                        self.fed = batches
                    case {"failed": why}:
                        self.failed.append(why)
                    case {"status": status, "counters": counters, "lines": lines, "history": history}:
                        self.status, self.counters, self.lines, self.history = status, counters, lines, history
                        self.answers += 1
        except ValueError:
            pass  # killed in the middle of a line, or closed


class DaemonFleet:
    """All processes of one test; the daemon starts on node 1."""

    poll_s = 0.02
    """Pause between two looks at what a test waits for."""

    def __init__(self, folder: Path, count: int = 3, factory: str = "tests.compute.counter:Counter") -> None:
        self.net = BadNet()
        self.nodes = [Process(folder, number) for number in range(count)]
        psk, ports = os.urandom(32).hex(), _free_ports(count)
        for node in self.nodes:
            node.folder.mkdir()
            load_or_create(node.folder / "id.toml")
        for node in self.nodes:
            others = self.nodes[: node.number]
            fronts = [self.net.pair(node.number, one.number, ("127.0.0.1", ports[one.number])) for one in others]
            peers = [
                {"address": f"{host}:{port}", "public_key": load_or_create(one.folder / "id.toml").entity_id.hex()}
                for one, (host, port) in zip(others, fronts, strict=True)
            ]
            settings = {
                "name": f"n{node.number}",
                "bind": f"127.0.0.1:{ports[node.number]}",
                "identity": str(node.folder / "id.toml"),
                "psk": psk,
                "log_dir": str(node.folder / "log"),
                "daemons_dir": str(node.folder / "daemons"),
                "heartbeat_s": 0.5,
                "session_timeout_s": 3.0,
                "handshake_timeout_s": 3.0,
                "peers": peers,
                **self.daemon_settings(node, factory),
            }
            (node.folder / "settings.json").write_text(json.dumps(settings))

    def daemon_settings(self, node: Process, factory: str) -> dict[str, Any]:
        """Return the settings of a node about the daemon and its channels."""
        entry = {
            "name": DAEMON,
            "factory": factory,
            "inputs": [f"{INPUT}@{self.nodes[0].id:016x}"],
            "output": OUTPUT,
            "run": node.number == 1,
        }
        return {
            "channels": [{"name": name, "log": "published"} for name in (INPUT, OUTPUT)],
            "daemons": [entry],
            "hold": [one.id for one in self.nodes if one is not node],
        }

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.wait(lambda: all(node.ready.is_set() for node in self.nodes), "the nodes")
        self.wait(self.is_connected, "sessions")

    def is_connected(self) -> bool:
        """Return whether every node has agreed on the profile with all others."""
        self.look()
        return all(node.status.get("agreed") == len(self.nodes) - 1 for node in self.nodes)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.net.close()

    def wait(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < until, f"waited {PATIENCE_S} s for {what}; {self.tell()}"
            time.sleep(self.poll_s)

    def tell(self) -> str:
        return json.dumps(
            [(one.number, one.status, one.failed[-3:], one.lines, one.counters.get("drop")) for one in self.nodes]
        )

    def look(self) -> None:
        """Ask the nodes that run for their state, and wait for it."""
        asked = {node: node.answers for node in self.nodes if node.process is not None and node.process.poll() is None}
        for node in asked:
            node.do("status")

        def answered() -> bool:
            return all(
                node.answers > before or node.process is None or node.process.poll() is not None
                for node, before in asked.items()
            )

        self.wait(answered, "answers")

    def owner(self) -> Process | None:
        """Return the node on which the daemon runs now, if one says so."""
        self.look()
        found = [one for one in self.nodes if one.status.get("next") and one.status["state"] != "moved"]
        return found[0] if len(found) == 1 else None

    def is_quiet(self) -> bool:
        """Return whether the daemon runs on one node, and no node takes part in a move of it."""
        owner = self.owner()
        return owner is not None and all(one.status.get("phase", "") is None for one in self.nodes)

    def move(self, driver: Process, target: Process, timeout_s: float = PATIENCE_S) -> None:
        """Ask a node to move the daemon, and do not wait."""
        driver.do("move", target.id, timeout_s)

    def finish(self, events: int) -> None:
        """Wait until all events are processed, stop everything, and compare with a daemon that ran alone."""

        def processed() -> bool:
            owner = self.owner()
            return owner is not None and owner.status["next"] == [events] and owner.status["state"] == "running"

        self.wait(processed, "all events to be processed")
        self.check_history(events)
        for node in self.nodes:
            node.stop()
        self.check(events)

    def check_history(self, events: int) -> None:
        """Compare all copies of the history with a daemon that ran alone."""
        _, outputs = run_alone([b"%d" % number for number in range(events)])

        def arrived() -> bool:
            self.look()
            return all(node.history["last"] == len(outputs) for node in self.nodes)

        self.wait(arrived, "the history")
        for node in self.nodes:
            assert (node.history["branches"], node.history["waiting"], node.history["contested"]) == (0, 0, False)
            assert node.history["digest"] == digest_of(outputs)

    def check(self, events: int) -> None:
        """Compare what is on the disks with a daemon that ran alone."""
        state, outputs = run_alone([b"%d" % number for number in range(events)])
        numbered: dict[int, bytes] = {}
        for node in self.nodes:
            folder = node.folder / "log" / "published"
            log = LogReader(folder, OUTPUT).snapshot()
            for event in log.events(log.first):
                assert event.headers is not None
                number = int(event.headers[BATCH]) + int(event.headers[PLACE])
                assert number not in numbered, f"output {number} was published twice"
                numbered[number] = bytes(event.payload)
        assert [numbered[number] for number in sorted(numbered)] == outputs
        assert self.states() == [state]

    def states(self) -> list[bytes]:
        """Return the states in the active records: there must be one."""
        return [checkpoint.state for checkpoint in self.checkpoints()]

    def checkpoints(self) -> list[Checkpoint]:
        """Return the active records."""
        found = []
        for node in self.nodes:
            files = DaemonFiles(node.folder / "daemons", os.urandom)
            for origin in files.origins():
                stored = files.load(origin)
                if stored is not None and stored.mark.status is Status.ACTIVE:
                    found.append(decode_checkpoint(decode_snapshot(stored.snapshot).state))
            assert not files.damaged
            assert not files.decisions()
            files.close()
        return found


@contextmanager
def daemon_fleet(folder: Path, count: int = 3, **options: Any) -> Iterator[DaemonFleet]:
    fleet = DaemonFleet(folder, count, **options)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()
