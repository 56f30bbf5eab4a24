"""A daemon with a ledger on three real processes: all replicate its input, its output and its checkpoints.

The node that runs it is killed or stopped while another one publishes. In the end the committed log of outputs is compared
with a daemon that ran alone over the published numbers (tests/compute/counter.py), and so is every state from which a node
could go on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshbus.compute.ledger import Ledger, decode_entry
from meshbus.log.reader import LogReader
from meshbus.wire.messages.checkpoint import decode_checkpoint
from meshbus.wire.messages.snapshot import decode_snapshot
from tests.compute.counter import run_alone
from tests.node.daemons.daemonchild import DAEMON, INPUT, OUTPUT
from tests.node.daemons.daemonfleet import DaemonFleet, Process

LEDGER = "checkpoints"
ROWS = 10
"""Numbers in a batch."""
PAUSE_S = 0.02


class FailoverFleet(DaemonFleet):
    """Three nodes of which any one can be lost."""

    poll_s = 0.1
    takeover_s = 1.5
    fed = 0
    """Batches that were published."""

    def daemon_settings(self, node: Process, factory: str) -> dict[str, Any]:
        names = [f"n{one.number}" for one in self.nodes]
        entry = {
            "name": DAEMON,
            "factory": factory,
            "inputs": [INPUT],
            "output": OUTPUT,
            "checkpoints": LEDGER,
            "run": node.number == 1,
        }
        channels = [{"name": name, "replicas": names, "replica_heartbeat_s": 0.2} for name in (INPUT, OUTPUT, LEDGER)]
        return {
            "channels": channels,
            "daemons": [entry],
            "session_timeout_s": 1.5,
            "takeover_s": self.takeover_s,
        }

    def feed(self, node: Process, batches: int) -> None:
        """Let a node publish the next batches, and do not wait."""
        node.do("feed", self.fed, self.fed + batches, ROWS, PAUSE_S)
        self.fed += batches

    def wait_for_owner(self, *, other_than: Process | None = None) -> Process:
        """Wait until the daemon runs on one node only, and has processed something there; return the node."""
        found: list[Process] = []

        def runs() -> bool:
            self.look()
            found[:] = [one for one in self.awake() if one.status["state"] == "running"]
            return len(found) == 1 and found[0] is not other_than and found[0].status["next"] != [0]

        self.wait(runs, "the daemon to run on one node")
        return found[0]

    def awake(self) -> list[Process]:
        """Return the nodes that were not killed."""
        return [one for one in self.nodes if one.process is not None]

    def wait_for_all(self) -> Process:
        """Wait until every number was processed, by the only node that runs the daemon; return the node."""

        def processed() -> bool:
            owner = self.wait_for_owner()
            return bool(owner.status["next"] == [self.fed * ROWS])

        self.wait(processed, "all numbers to be processed")
        return self.wait_for_owner()

    def lose_owner(self, owner: Process) -> None:
        """Kill the node of the daemon."""
        owner.kill()
        owner.status = {}

    def bring_back(self, node: Process) -> None:
        """Start a node that was killed, and wait until it knows that the daemon is not its own any more."""
        node.start()
        self.wait(self.is_connected, "sessions")
        self.wait_for_fenced(node)

    def wait_for_fenced(self, node: Process) -> None:
        """Wait until one node runs the daemon, and a node that had it has left it.

        On a busy machine other nodes may be taken for dead, and the node may have got the daemon again by then.
        """

        def fenced() -> bool:
            self.wait_for_owner()
            return node.status["state"] == "moved" or any("which has claimed it" in line for line in node.lines)

        self.wait(fenced, "the old owner to leave the daemon")

    @contextmanager
    def stopped(self, node: Process) -> Iterator[None]:
        """Stop a process inside `with`, and let it go on."""
        assert node.process is not None
        process, node.process = node.process, None  # it cannot answer meanwhile
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)
            node.process = process

    def finish_failover(self) -> None:
        """Wait until all numbers are processed, kill everything, and compare with a daemon that ran alone."""
        self.wait_for_all()
        state, outputs = run_alone([b"%d" % number for number in range(self.fed * ROWS)])
        self.wait(lambda: self.outputs() == [outputs] * len(self.nodes), "all members to have all outputs")
        for node in self.nodes:  # at once: one that closes slowly would leave the others time to take the daemon over
            assert node.process is not None
            node.process.send_signal(signal.SIGKILL)
        for node in self.nodes:
            node.buried()
        assert self.outputs() == [outputs] * len(self.nodes)
        # Everything that any node could go on from is the end: the ledger, and the records that it does not supersede.
        ledger = self.ledger()
        assert ledger.snapshot is not None
        assert decode_checkpoint(decode_snapshot(ledger.snapshot).state).state == state
        active = [one for one in self.checkpoints() if not ledger.supersedes(one.term)]
        assert active
        assert {one.state for one in active} == {state}

    def outputs(self) -> list[list[bytes]]:
        """Return the committed outputs on the disk of each node, in the order of the log."""
        return [self._committed(node, OUTPUT) for node in self.nodes]

    def ledger(self) -> Ledger:
        """Return the ledger of the daemon, from the disk that has most of it."""
        entries = [decode_entry(one) for one in max((self._committed(node, LEDGER) for node in self.nodes), key=len)]
        (origin,) = {entry.origin for entry in entries if entry.origin}
        ledger = Ledger(origin)
        for entry in entries:
            ledger.read(entry)
        return ledger

    def _committed(self, node: Process, channel: str) -> list[bytes]:
        log = LogReader(node.folder / "log" / "published", channel).snapshot()
        return [bytes(event.payload) for event in log.events(log.first)]


@contextmanager
def failover_fleet(folder: Path) -> Iterator[FailoverFleet]:
    fleet = FailoverFleet(folder)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()
