"""NATS JetStream: three servers on loopback, and a stream with three replicas, driven by nats-py.

`sync` is the servers' sync_interval: `always` syncs before every acknowledgement, as `acks = majority` does; the default
of two minutes acknowledges what is in memory. Batches are published either by `publish_async`, with as many under way as
nats-py allows by default, or by the server's fast ingest (ingest.py), which acknowledges many messages at once.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket  # noqa: TID251  only to find free ports for the servers
import sysconfig
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import nats
import nats.errors
import nats.js.errors

from bench.replicated.contender import Load, Mode, drive
from bench.replicated.ingest import FastIngest

ALWAYS, DEFAULT = "always", "2m"
SERVERS = 3
SUBJECT, STREAM = "bench.events", "BENCH"
BATCH = 4000
"""Messages under way at once: the default of nats-py."""
START_S = 30.0
RETRY_S = 0.25
"""How long one publish waits for its acknowledgement while the leader is replaced."""


class JetStream:
    """A cluster and a client of it."""

    def __init__(self, folder: Path, processes: list[asyncio.subprocess.Process], client: Any, *, fast: bool) -> None:
        self._folder = folder
        self._processes = processes
        self._client = client
        self._stream = client.jetstream()
        self._fast = fast

    @classmethod
    async def start(cls, sync: str, *, fast: bool = False) -> Self:
        """Start the servers, wait for their election, and create the stream."""
        folder = Path(tempfile.mkdtemp(prefix="bench-jetstream-"))
        ports = _free_ports(2 * SERVERS)
        clients, routes = ports[:SERVERS], ports[SERVERS:]
        processes = []
        for number, (client, route) in enumerate(zip(clients, routes, strict=True)):
            config = folder / f"{number}.conf"
            config.write_text(_config(number, client, route, routes, folder, sync))
            program = Path(sysconfig.get_path("scripts")) / "nats-server"
            processes.append(await asyncio.create_subprocess_exec(program, "-c", config, "-l", f"{config}.log"))
        connection = await nats.connect(
            [f"nats://127.0.0.1:{port}" for port in clients],
            reconnect_time_wait=0.01,
            max_reconnect_attempts=-1,
            error_cb=_ignore,
        )
        contender = cls(folder, processes, connection, fast=fast)
        await contender._create()
        return contender

    async def load(self, mode: Mode, size: int, seconds: float) -> Load:
        """Append events of a size for some time."""
        payload = bytes(size)
        if mode is Mode.SINGLE:
            return await drive(lambda: self._append(payload), seconds)
        if self._fast:
            ingest = FastIngest(self._client, SUBJECT)
            return await drive(lambda: ingest.publish([payload] * BATCH), seconds)
        return await drive(lambda: self._append_many([payload] * BATCH), seconds)

    async def fail_over(self) -> float:
        """Kill the leader while events are appended, and return the seconds until the next acknowledgement."""
        leader = (await self._stream.stream_info(STREAM)).cluster.leader
        self._processes[int(leader.removeprefix("n"))].kill()
        began = time.perf_counter()
        while True:
            with suppress(nats.errors.Error, nats.js.errors.Error, asyncio.TimeoutError):
                await self._stream.publish(SUBJECT, bytes(64), timeout=RETRY_S)
                return time.perf_counter() - began

    async def close(self) -> None:
        """Stop all processes."""
        with suppress(nats.errors.Error):
            await self._client.close()
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _append(self, payload: bytes) -> int:
        await self._stream.publish(SUBJECT, payload)
        return 1

    async def _append_many(self, payloads: list[bytes]) -> int:
        await asyncio.gather(*[await self._stream.publish_async(SUBJECT, payload) for payload in payloads])
        return len(payloads)

    async def _create(self) -> None:
        config = {
            "name": STREAM,
            "subjects": [SUBJECT],
            "num_replicas": SERVERS,
            "storage": "file",
            "allow_batched": self._fast,
        }
        deadline = time.monotonic() + START_S
        answer: dict[str, Any] = {}
        while time.monotonic() < deadline:
            with suppress(nats.errors.Error, asyncio.TimeoutError):  # no leader yet
                request = json.dumps(config).encode()
                reply = await self._client.request(f"$JS.API.STREAM.CREATE.{STREAM}", request, timeout=5)
                answer = json.loads(reply.data)
                if "error" not in answer:
                    return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"JetStream did not create the stream within {START_S:g} s: {answer.get('error')}")


def _config(number: int, client: int, route: int, routes: list[int], folder: Path, sync: str) -> str:
    others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes if port != route)
    return f"""
        server_name: n{number}
        listen: "127.0.0.1:{client}"
        cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{others}] }}
        jetstream {{ store_dir: "{folder / str(number)}", sync_interval: "{sync}" }}
    """


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; the servers need them before they start."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def _ignore(_error: Exception) -> None:
    """Do not print that a server is gone: it was killed."""
