"""Members of a replicated channel as real processes on loopback, with a bad network between them.

Every node dials those before it, through a proxy that this process runs: it drops, delays and doubles datagrams, slows a
node down, and cuts nodes off from each other, in one direction if it has to. What the nodes report is collected; `check`
compares it with what is on their disks.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import socket  # noqa: TID251 - the network between the processes
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from heapq import heappop, heappush
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import msgspec

from meshbus.engine.replicas.records import Ballot
from meshbus.keyfile import load_or_create
from meshbus.log.reader import LogReader
from meshbus.log.replicated import ReplicatedLog
from meshbus.wire.messages.redex import channel_id
from tests.children import child
from tests.house.tree import ROOT
from tests.node.replicas.replicachild import CHANNEL
from tests.patience import PATIENCE_S

Where = tuple[str, int]


class BadNet:
    """A proxy for each pair of nodes, all in one thread."""

    def __init__(self, seed: int = 0) -> None:
        self.loss = self.duplication = 0.0
        self.delay_s = 0.0
        """Datagrams are held back by up to this much, so that they overtake each other."""
        self.slow: dict[int, float] = {}
        """Datagrams from and to these nodes take so many seconds more."""
        self.cut: set[tuple[int, int]] = set()
        """From and to: links that carry nothing."""
        self._random = random.Random(seed)
        self._selector = DefaultSelector()
        self._late: list[tuple[float, int, socket.socket, bytes, Where]] = []
        self._number = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def pair(self, one: int, other: int, address: Where) -> Where:
        """Return the address at which `one` reaches `other`, whose own address is given."""
        front, back = _udp(), _udp()
        route: dict[str, Where] = {"back": address}
        self._selector.register(front, EVENT_READ, ((one, other), front, back, route, "front"))
        self._selector.register(back, EVENT_READ, ((other, one), back, front, route, "back"))
        return front.getsockname()  # type: ignore[no-any-return]

    def isolate(self, node: int, others: range) -> None:
        """Cut a node off from all others."""
        self.silence(node, others)
        self.cut |= {(other, node) for other in others if other != node}

    def silence(self, node: int, others: range) -> None:
        """Carry nothing that a node sends; it still hears the others."""
        self.cut |= {(node, other) for other in others if other != node}

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, via, datagram, to = heappop(self._late)
                via.sendto(datagram, to)
            wait = 0.02 if not self._late else min(0.02, max(0.0, self._late[0][0] - now))
            if not self._selector.get_map():
                time.sleep(wait)
                continue
            for key, _ in self._selector.select(wait):
                self._carry(*key.data)

    def _carry(
        self, link: tuple[int, int], came: socket.socket, via: socket.socket, route: dict[str, Where], side: str
    ) -> None:
        for _ in range(64):
            try:
                datagram, sender = came.recvfrom(65_536)
            except BlockingIOError:
                return
            except OSError:
                continue  # nobody listens there now
            if side == "front":
                route["front"] = sender  # a node that was started again has the same address, but need not
            to = route.get("back" if side == "front" else "front")
            if to is None or link in self.cut or self._random.random() < self.loss:
                continue
            late_s = sum(self.slow.get(node, 0.0) for node in link)
            for _ in range(2 if self._random.random() < self.duplication else 1):
                if self.delay_s or late_s:
                    self._number += 1
                    due = time.monotonic() + self._random.random() * self.delay_s + late_s
                    heappush(self._late, (due, self._number, via, datagram, to))
                else:
                    via.sendto(datagram, to)


class Member:
    """One process."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self.number = number
        self.folder = fleet.folder / f"n{number}"
        self.process: subprocess.Popen[str] | None = None
        self.status: dict[str, Any] = {}
        self.counters: dict[str, dict[str, int]] = {}
        self.dialing: list[str] = []
        self.answers = 0
        self._stack = ExitStack()

    @property
    def id(self) -> int:
        return load_or_create(self.folder / "id.toml").node_id

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.node.replicas.replicachild", str(self.folder / "settings.json")]
        self.status = {}
        self.process = self._stack.enter_context(
            child(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def do(self, *command: object) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._stack.close()
        self.process = None

    def stop(self) -> None:
        assert self.process is not None
        self.do("quit")
        self.process.wait(PATIENCE_S)
        self._stack.close()
        self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wipe(self) -> None:
        shutil.rmtree(self.folder / "log")

    def truncate(self) -> None:
        """Cut the newest file of the log in half, while the process does not run."""
        newest = max(self._hot_files(), key=lambda path: path.name)
        os.truncate(newest, newest.stat().st_size // 2)

    def fill_disk(self) -> None:
        """Let every write to a file fail in the kernel: no file of the process may grow."""
        assert self.process is not None
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def clear_disk(self) -> None:
        """Let writes succeed again."""
        assert self.process is not None
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def set_aside(self) -> list[bytes]:
        """Return the events that the member moved out of its log, while the process does not run."""
        with ReplicatedLog.open(self.folder / "log" / "published", CHANNEL, channel_id(CHANNEL)[:16]) as log:
            return [event.payload for aside in log.asides() for event in log.read_aside(aside)]

    @property
    def incarnation(self) -> int:
        """The incarnation of the memory on its disk, while the process does not run."""
        with ReplicatedLog.open(self.folder / "log" / "published", CHANNEL, channel_id(CHANNEL)[:16]) as log:
            assert log.recovered.ballot is not None
            return msgspec.msgpack.decode(log.recovered.ballot, type=Ballot).incarnation

    def _hot_files(self) -> list[Path]:
        return list((self.folder / "log" / "published").rglob("_hot/*.hot"))

    def close(self) -> None:
        self._stack.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._hear(json.loads(line))
        except ValueError:
            pass  # killed in the middle of a line, or closed

    def _hear(self, said: dict[str, Any]) -> None:
        fleet = self._fleet
        with fleet.lock:
            match said:
                case {"acked": [prefix, start, stop, seq]}:
                    for place, number in enumerate(range(start, stop)):
                        fleet.acked[f"{prefix}{number}"] = seq + place
                case {"tried": [prefix, start, stop]}:
                    fleet.tried |= {f"{prefix}{number}" for number in range(start, stop)}
                case {"unresolved": [prefix, start, stop]}:
                    fleet.unresolved |= {f"{prefix}{number}" for number in range(start, stop)}
                case {"status": status, "counters": counters, "dialing": dialing}:
                    self.status, self.counters, self.dialing = status, counters, dialing
                    self.answers += 1
                case {"refused": why}:
                    fleet.refused[why] += 1
                case {"done": prefix}:
                    fleet.done.add(prefix)


class Fleet:
    """All processes of one test."""

    def __init__(self, folder: Path, count: int, *, acks: str = "majority", heartbeat_s: float = 0.2) -> None:
        self.folder = folder
        self.net = BadNet()
        self.lock = threading.Lock()
        self.acks = acks
        self.acked: dict[str, int] = {}
        self.tried: set[str] = set()
        self.unresolved: set[str] = set()
        self.refused: defaultdict[str, int] = defaultdict(int)
        self.done: set[str] = set()
        self.lives = 0
        """Counts restarts, for the names of publishers."""
        psk = os.urandom(32).hex()
        names = [f"n{number}" for number in range(count)]
        self.members = [Member(self, number) for number in range(count)]
        ports = _free_ports(count)
        for member in self.members:
            member.folder.mkdir()
            load_or_create(member.folder / "id.toml")
        for member in self.members:
            others = self.members[: member.number]
            fronts = [self.net.pair(member.number, one.number, ("127.0.0.1", ports[one.number])) for one in others]
            peers = [
                {
                    "address": f"{host}:{port}",
                    "public_key": load_or_create(other.folder / "id.toml").entity_id.hex(),
                }
                for other, (host, port) in zip(others, fronts, strict=True)
            ]
            settings = {
                "name": names[member.number],
                "bind": f"127.0.0.1:{ports[member.number]}",
                "identity": str(member.folder / "id.toml"),
                "psk": psk,
                "log_dir": str(member.folder / "log"),
                "heartbeat_s": 0.5,
                "session_timeout_s": 3.0,
                "handshake_timeout_s": 3.0,
                "channels": [
                    {"name": CHANNEL, "replicas": names, "acks": acks, "replica_heartbeat_s": heartbeat_s},
                ],
                "peers": peers,
            }
            (member.folder / "settings.json").write_text(json.dumps(settings))

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.wait(lambda: self.leader() is not None, "a leader")

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.net.close()

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def look(self, *members: Member) -> None:
        """Ask running members for their state, and wait for it."""
        asked = {member: member.answers for member in members or self.members if member.process is not None}
        for member in asked:
            member.do("status")
        self.wait(lambda: all(member.answers > before for member, before in asked.items()), "answers")

    def leader(self) -> Member | None:
        """Return the member that leads the highest epoch and hears from a majority, or None."""
        self.look(*self.running())
        found = [one for one in self.running() if one.status["role"] == "leader" and one.status["waiting"] is None]
        return max(found, key=lambda one: int(one.status["epoch"]), default=None)

    def running(self) -> list[Member]:
        return [member for member in self.members if member.process is not None]

    def wait_for_leader(self, *, other_than: Member | None = None) -> Member:
        found: list[Member] = []

        def led() -> bool:
            leader = self.leader()
            found[:] = [leader] if leader is not None and leader is not other_than else []
            return bool(found)

        self.wait(led, "another leader")
        return found[0]

    def wait_for_other(self) -> Member:
        """Return a member that does not lead."""
        leader = self.wait_for_leader()
        return next(member for member in self.running() if member is not leader)

    def wait(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not done():
            dead = [member.number for member in self.running() if member.process and member.process.poll() is not None]
            assert not dead, f"these members ended by themselves: {dead}"
            assert time.monotonic() < until, f"waited {PATIENCE_S} s for {what}; {self.tell()}"
            time.sleep(0.02)

    def tell(self) -> str:
        """Return what the members say now, as far as they answer."""
        for member in self.running():
            member.status = {}
            member.do("status")
        time.sleep(10)
        return json.dumps([(member.status, member.counters, member.dialing) for member in self.members])

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def converge(self) -> None:
        """Wait until all members have the same log, all of it committed."""

        def same() -> bool:
            self.look()
            ends = {(one.status["tail"], one.status["committed"]) for one in self.members if one.status}
            idle = all(one.status and one.status["waiting"] is None for one in self.members)
            return idle and len(ends) == 1 and all(tail == committed for tail, committed in ends)

        self.wait(same, "the same log everywhere")

    def converge_committed(self) -> None:
        """Wait until every member has the log up to somewhere recent, so that any one of them can be lost."""
        self.look()
        goal = max(int(member.status["committed"]) for member in self.members)

        def reached() -> bool:
            self.look()
            return all(int(member.status["committed"]) >= goal for member in self.members)

        self.wait(reached, "all members to catch up")

    def takes_part(self, member: Member) -> bool:
        """Return whether a member follows or leads."""
        self.look(member)
        return member.status["role"] in {"leader", "replica"} and member.status["waiting"] is None

    def is_member_again(self, member: Member) -> bool:
        """Return whether a member that lost its disk follows, and has caught up with what was committed."""
        self.look()
        leader = self.leader()
        if leader is None:
            return False
        told = {int(one["node_id"]): one for one in leader.status["members"]}.get(member.id)
        return told is not None and told["lag"] is not None and told["lag"] < 2_000 and told["stored"] > 0

    def check(self) -> int:
        """Compare what was acknowledged with what is on disk, and return the number of events."""
        logs = {member.number: self._read(member) for member in self.members}
        (log_id, events), *others = logs.values()
        for other_id, other in others:
            assert other_id == log_id
            first = next((seq for seq, (a, b) in enumerate(zip(events, other, strict=False)) if a != b), None)
            assert other == events, f"logs differ at {first}, of {len(events)} and {len(other)} events"
        places: dict[str, int] = {}
        for seq, payload in enumerate(events):
            text = payload.decode()
            assert text not in places, f"{text} is there twice, at {places[text]} and {seq}"
            places[text] = seq
        lost = {text for text, seq in self.acked.items() if places.get(text) != seq}
        if self.acks == "local":
            # What only the leader's disk had may be lost to the log, and is named: it is in a side file of that member.
            lost -= {payload.decode() for member in self.members for payload in member.set_aside()} - places.keys()
        for text in lost:
            raise AssertionError(f"{text} was acknowledged at {self.acked[text]} and is at {places.get(text)}")
        unknown = set(places) - self.tried
        assert not unknown, f"{len(unknown)} events that nobody published: {sorted(unknown)[:5]}"
        self._check_order(places)
        return len(events)

    def _check_order(self, places: dict[str, int]) -> None:
        last: dict[str, tuple[int, int]] = {}
        for text, _ in sorted(places.items(), key=lambda item: item[1]):
            prefix = text.rstrip("0123456789")
            number = int(text[len(prefix) :])
            before = last.get(prefix, (-1, -1))[0]
            assert number > before, f"{text} comes after {prefix}{before}"
            last[prefix] = number, places[text]

    def _read(self, member: Member) -> tuple[bytes, list[bytes]]:
        snapshot = LogReader(member.folder / "log" / "published", CHANNEL).snapshot()
        rows = list(snapshot.events())
        assert [row.seq for row in rows] == list(range(len(rows)))
        return snapshot.log_id, [row.payload for row in rows]


@contextmanager
def fleet(folder: Path, count: int = 3, **options: Any) -> Iterator[Fleet]:
    """Run members inside `with`."""
    found = Fleet(folder, count, **options)
    try:
        found.start()
        yield found
    finally:
        found.close()


def _udp() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.setblocking(False)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    found.bind(("127.0.0.1", 0))
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [_udp() for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
