"""Three nodes in processes of their own, each of a build that the test chooses, on directories that stay.

`alarms` is replicated by all three. `readings` is logged by each node that publishes on it, and read by the others, live and
from the log. What the nodes report is collected; `check` compares it with what is on their disks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from meshbus.keyfile import load_or_create
from meshbus.log.packets.policies import load_policies
from meshbus.log.packets.reader import PacketReader
from meshbus.log.reader import LogReader
from tests.children import child
from tests.patience import PATIENCE_S
from tests.ports import free_udp_ports
from tests.upgrade import member as program
from tests.upgrade.older import environment

ALARMS, READINGS = "alarms", "readings"
NAMES = ("n0", "n1", "n2")


class Member:
    """One node, in one process at a time."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self.number = number
        self.name = NAMES[number]
        self.folder = fleet.folder / self.name
        self.process: subprocess.Popen[str] | None = None
        self.status: dict[str, Any] = {}
        self.answers = 0
        self.build = ""
        """Where the running process has its code from, as it says."""
        self._stack = ExitStack()

    @property
    def id(self) -> str:
        return f"{load_or_create(self.folder / 'id.toml').node_id:016x}"

    def start(self, build: Path) -> None:
        """Start a process of a build, and wait until the node is up."""
        self.launch(build)
        self.wait_up(build)

    def launch(self, build: Path) -> None:
        """Start a process of a build."""
        self.status, self.build = {}, ""
        command = [sys.executable, str(Path(program.__file__)), str(self.folder / "settings.json")]
        self.process = self._stack.enter_context(
            child(command, env=environment(build), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def wait_up(self, build: Path) -> None:
        """Wait until the node is up."""
        self._fleet.wait(lambda: bool(self.build), f"{self.name} to start")
        assert Path(self.build).parent == build, "the process uses another build"

    def stop(self) -> None:
        """End the process as an operator does."""
        assert self.process is not None
        self.do("quit")
        assert self.process.wait(PATIENCE_S) == 0
        self._stack.close()
        self.process = None

    def kill(self) -> None:
        """End the process as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._stack.close()
        self.process = None

    def do(self, *command: object) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def publish(self, channel: str) -> str:
        """Publish until halted, and return the prefix of the events."""
        prefix = f"{channel}.{self.name}.{self._fleet.next_number()}."
        self.do("publish", channel, prefix)
        return prefix

    def halt(self, prefix: str) -> int:
        """End publishing, and return how many events there are."""
        self.do("halt", prefix)
        self._fleet.wait(lambda: prefix in self._fleet.counts, f"the end of {prefix}")
        return self._fleet.counts[prefix]

    def close(self) -> None:
        self._stack.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._hear(json.loads(line))
        except ValueError:
            pass  # closed

    def _hear(self, said: dict[str, Any]) -> None:
        fleet = self._fleet
        with fleet.lock:
            match said:
                case {"up": _, "build": build}:
                    self.build = build
                case {"acked": [channel, prefix, number, seq]}:
                    fleet.acked[channel, self.name if channel == READINGS else ""][f"{prefix}{number}"] = seq
                case {"unresolved": [_, prefix, number]}:
                    fleet.unresolved.add(f"{prefix}{number}")
                case {"done": prefix, "count": published}:
                    fleet.counts[prefix] = published
                case {"following": label}:
                    fleet.followed.setdefault(label, [])
                case {"got": [label, payload]}:
                    fleet.followed[label].append(payload)
                case {"history": label, "events": events}:
                    fleet.histories[label] = events
                case {"failed": label, "problem": problem}:
                    fleet.histories[label] = problem
                case {"crashed": error}:
                    fleet.crashed.append(f"{self.name}: {error}")
                case {"status": status}:
                    self.status = status
                    self.answers += 1


class Fleet:
    """All nodes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.acked: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        """Where each event is in its log, by channel and, if each node has its own log, node."""
        self.unresolved: set[str] = set()
        self.counts: dict[str, int] = {}
        self.followed: dict[str, list[str]] = {}
        self.histories: dict[str, list[str] | str] = {}
        self.crashed: list[str] = []
        self._numbers = count()
        self.members = [Member(self, number) for number in range(len(NAMES))]
        self._write_settings()

    def _write_settings(self) -> None:
        psk, ports = os.urandom(32).hex(), free_udp_ports(len(NAMES))
        for member in self.members:
            member.folder.mkdir()
            load_or_create(member.folder / "id.toml")
        for member in self.members:
            settings = {
                "name": member.name,
                "bind": f"127.0.0.1:{ports[member.number]}",
                "identity": str(member.folder / "id.toml"),
                "psk": psk,
                "log_dir": str(member.folder / "log"),
                "record_packets": True,
                "heartbeat_s": 1.0,
                "session_timeout_s": 20.0,  # a node that stops says goodbye; one that is slow is not given up
                "channels": [
                    {"name": ALARMS, "replicas": list(NAMES), "acks": "majority", "replica_heartbeat_s": 0.2},
                    {"name": READINGS, "log": "published", "log_fsync": "every 1"},
                ],
                "peers": [
                    {
                        "address": f"127.0.0.1:{ports[other.number]}",
                        "public_key": load_or_create(other.folder / "id.toml").entity_id.hex(),
                    }
                    for other in self.members[: member.number]
                ],
            }
            (member.folder / "settings.json").write_text(json.dumps(settings))

    def close(self) -> None:
        for member in self.members:
            member.close()

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def running(self) -> list[Member]:
        return [member for member in self.members if member.process is not None]

    def look(self, *members: Member) -> None:
        """Ask running members for their state, and wait for it."""
        asked = {member: member.answers for member in members or self.running()}
        for member in asked:
            member.do("status")
        self.wait(lambda: all(member.answers > before for member, before in asked.items()), "answers")

    def wait(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not done():
            dead = [member.name for member in self.running() if member.process and member.process.poll() is not None]
            assert not dead, f"these nodes ended by themselves: {dead}"
            assert not self.crashed, self.crashed
            states = [(member.name, member.status) for member in self.members]
            assert time.monotonic() < until, f"waited {PATIENCE_S} s for {what}; {states}"
            time.sleep(0.02)

    def wait_together(self, *members: Member) -> None:
        """Wait until these nodes have agreed on the profile with each other, and replicate `alarms`."""

        def together() -> bool:
            self.look(*members)
            return all(
                one.status["waiting"] is None
                and one.status["role"] in {"leader", "replica"}
                and {other.id for other in members if other is not one} <= set(one.status["agreed"])
                for one in members
            )

        self.wait(together, f"{', '.join(member.name for member in members)} to work together")

    def wait_acked(self, events: int = 10) -> None:
        """Wait until more events are acknowledged by the replicated channel."""
        alarms = self.acked[ALARMS, ""]
        goal = len(alarms) + events
        self.wait(lambda: len(alarms) >= goal, "acknowledgements")

    def wait_same(self) -> None:
        """Wait until all members have the same replicated log, all of it committed."""

        def same() -> bool:
            self.look()
            ends = {(one.status["tail"], one.status["committed"]) for one in self.running()}
            return len(ends) == 1 and all(tail == committed for tail, committed in ends)

        self.wait(same, "the same log everywhere")

    # ── work ────────────────────────────────────────────────────────────────────────────────

    def next_number(self) -> int:
        """Return a number that nothing else in this test has."""
        return next(self._numbers)

    def follow(self, subscriber: Member, publisher: Member) -> str:
        """Subscribe one node to the readings of another, and return the label of what it gets."""
        label = f"{self.next_number()}: {subscriber.name} follows {publisher.name}"
        subscriber.do("follow", publisher.id, READINGS, label)
        self.wait(lambda: label in self.followed, f"{label} to begin")
        return label

    def read_history(self, reader: Member, publisher: Member) -> list[str]:
        """Return all readings of a node as another node reads them from its log."""
        label = f"{self.next_number()}: {reader.name} reads the log of {publisher.name}"
        logged = len(self.acked[READINGS, publisher.name])
        reader.do("history", publisher.id, READINGS, logged, label)
        self.wait(lambda: label in self.histories, label)
        found = self.histories[label]
        assert isinstance(found, list), found
        return found

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def check(self) -> int:
        """Compare what was acknowledged with what is on the disks, and return the number of replicated events."""
        (first, *others) = [self._events(member, ALARMS) for member in self.members]
        assert all(other == first for other in others), "the replicas differ"
        self._check_log(first, self.acked[ALARMS, ""])
        for member in self.members:
            self._check_log(self._events(member, READINGS), self.acked[READINGS, member.name])
            self._check_record(member)
        return len(first)

    def _check_record(self, member: Member) -> None:
        """Check that what both builds have recorded is read as one record, with the policies of all packets."""
        snapshot = PacketReader(member.folder / "log", int(member.id, 16)).snapshot()
        batches = list(snapshot.batches(columns=["policy_version", "ts_ns"]))
        used = {number for batch in batches for number in batch.column("policy_version").to_pylist()}
        assert used
        assert used <= load_policies(snapshot.folder).keys() | {0}

    def _check_log(self, events: list[str], acked: dict[str, int]) -> None:
        assert len(set(events)) == len(events), "an event is there twice"
        lost = {event: seq for event, seq in acked.items() if seq >= len(events) or events[seq] != event}
        assert not lost, f"acknowledged and not there: {lost}"
        unknown = set(events) - acked.keys() - self.unresolved
        assert not unknown, f"nobody published {sorted(unknown)[:5]}"
        numbers: dict[str, int] = {}
        for event in events:
            prefix, _, number = event.rpartition(".")
            assert int(number) > numbers.get(prefix, -1), f"{event} is out of order"
            numbers[prefix] = int(number)

    def _events(self, member: Member, channel: str) -> list[str]:
        events = list(LogReader(member.folder / "log" / "published", channel).snapshot().events())
        assert [event.seq for event in events] == list(range(len(events)))
        return [event.payload.decode() for event in events]


@contextmanager
def fleet(folder: Path, build: Path) -> Iterator[Fleet]:
    """Run three nodes of a build inside `with`, which work together when the block begins."""
    found = Fleet(folder)
    try:
        for member in found.members:
            member.launch(build)
        for member in found.members:
            member.wait_up(build)
        found.wait_together(*found.members)
        yield found
    finally:
        found.close()
