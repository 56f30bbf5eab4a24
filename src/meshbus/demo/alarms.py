"""The demo's alarm channel: three replicas, of which the leader is killed while alarms are published.

Afterwards the logs of the others are read from their disks: every alarm that was acknowledged must be there, once and in
order. The program of one replica is demo/replica.py.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from meshbus.demo.process import Process
from meshbus.demo.replica import CHANNEL, STATE, Look, Sound, State, alarm
from meshbus.errors import MeshError
from meshbus.keyfile import create_identity, create_psk
from meshbus.log.reader import LogReader
from meshbus.names.identity import Identity

NAMES = ("east", "north", "west")
ALARMS, PER_S = 200, 80.0
KILL_AFTER_S = 1.0
PAUSE_S = 0.1
_CONFIG = """\
name = "{name}"
identity = "id.toml"
psk_file = "../mesh.key"
bind = "127.0.0.1:0"
admin_socket = ""
log_dir = "logs"

[[channels]]
name = "{channel}"
replicas = [{names}]
replica_heartbeat_s = 0.2
{peers}"""


class Alarmed(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the alarms."""

    killed: str
    """The leader that was killed."""
    leader: str
    """The member that leads afterwards."""
    acknowledged: int
    longest_wait_s: float
    """How long the slowest publish took: that during which the leader changed."""
    lags: dict[str, int | None]
    """Alarms that each member has not confirmed, as the new leader sees it."""


class _Replica:
    """The parent's side of one replica."""

    def __init__(self, name: str, config: Path) -> None:
        self.name = name
        errors = config.with_name("stderr.txt")
        # Without compiled kernels a process starts in half the time, and there are few packets.
        command = ("-m", "meshbus.demo.replica", str(config))
        self.process = Process(name, *command, says=STATE.decode, errors=errors, env={"MESHBUS_JIT": "0"})

    async def ask(self, command: Sound | Look) -> State:
        """Send a command, and return the state afterwards."""
        self.process.tell(msgspec.json.encode(command) + b"\n")
        return await self.process.answer()


async def run_alarms(folder: Path) -> Alarmed:
    """Run the replicas, kill the leader, and check the logs. Raises MeshError if an acknowledged alarm is missing."""
    create_psk(_made(folder) / "mesh.key")
    async with AsyncExitStack() as stack:
        replicas: dict[int, _Replica] = {}
        peers = ""
        for name in NAMES:
            home = _made(folder / name)
            identity = _write(home, name, peers)
            replica = _Replica(name, home / "node.toml")
            await stack.enter_async_context(replica.process)
            state = await replica.process.answer()
            replicas[identity.node_id] = replica
            peers += f'\n[[peers]]\naddress = "{state.address}"\npublic_key = "{identity.entity_id.hex()}"\n'
        leader, _ = await _led(replicas)
        killed = replicas.pop(leader)
        publisher = next(iter(replicas.values()))
        async with asyncio.TaskGroup() as tasks:
            sounding = tasks.create_task(publisher.ask(Sound(ALARMS, PER_S)))
            await asyncio.sleep(KILL_AFTER_S)
            killed.process.kill()
        done = sounding.result()
        leader, state = await _led(replicas)
        for replica in replicas.values():
            await _caught_up(replica)
    for replica in replicas.values():
        _check(folder / replica.name)
    return Alarmed(
        killed=killed.name,
        leader=replicas[leader].name,
        acknowledged=ALARMS,
        longest_wait_s=done.longest_wait_s,
        lags=state.lags,
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _write(home: Path, name: str, peers: str) -> Identity:
    identity = create_identity(home / "id.toml")
    names = ", ".join(f'"{one}"' for one in NAMES)
    (home / "node.toml").write_text(_CONFIG.format(name=name, channel=CHANNEL, names=names, peers=peers), "utf-8")
    return identity


async def _led(replicas: dict[int, _Replica]) -> tuple[int, State]:
    """Wait until one of the replicas leads and takes appends; return it, and its state."""
    while True:
        for node_id, replica in replicas.items():
            state = await replica.ask(Look())
            if state.ready and state.leader == node_id:
                return node_id, state
        await asyncio.sleep(PAUSE_S)


async def _caught_up(replica: _Replica) -> None:
    while (await replica.ask(Look())).committed < ALARMS:  # noqa: ASYNC110 - it happens in another process
        await asyncio.sleep(PAUSE_S)


def _check(home: Path) -> None:
    events = LogReader(home / "logs" / "published", CHANNEL).snapshot().events()
    if [event.payload for event in events] != [alarm(number) for number in range(ALARMS)]:
        raise MeshError(f"the log of {CHANNEL} in {home} does not have every alarm once and in order; this is a bug")
