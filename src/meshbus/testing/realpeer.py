"""Run a published net-mesh node in its own process, as a peer for tests.

    with RealPeer(psk=PSK, channels=[{"name": "sensors/lidar"}]) as peer:
        peer.start()
        ...                                          # connect a meshbus node to peer.address
        peer.publish("sensors/lidar", b"hello")

It needs the package `net-mesh`: version 0.23.0, or another one by its directory. The node has its own process because
some calls of the binding hold the interpreter lock until the peer answers, and the peer is usually the test. The program
in that process is realnode.py.

Every method blocks until the node has answered, at most `timeout_s`. In a coroutine use
`await asyncio.to_thread(peer.publish, …)`. If two calls need each other, such as accept and connect, use `begin`, which
returns a future. Events are text, as in the binding: a payload that is not UTF-8 arrives empty.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Self

import msgspec

from meshbus.errors import ConfigError, MeshError, Timeout
from meshbus.testing import realnode
from meshbus.testing.realnode import Reply, Request, read_frame, write_frame

PACKAGE = "net-mesh"
VERSION = "0.23.0"
TIMEOUT_S = 20.0
"""Longest wait for an answer: a handshake of net-mesh gives up after 15.3 s."""
GRACE_S = 3.0
"""Time for an orderly shutdown; after that the process is killed."""
_STDERR_BYTES = 2000
"""How many of the last bytes of standard error an error message contains."""


class RealPeerError(MeshError):
    """The real node raised an exception, or its process has exited."""

    code = "real_peer"

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        """Class name of the binding's exception (`ChannelAuthError`, `BackpressureError`, …), or `Gone`."""
        self.problem = problem
        super().__init__(f"{kind}: {problem}" if problem else kind)


class PeerEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event as the real node received it."""

    raw: str
    id: str
    """`<packet sequence>:<index in the packet>`."""


class RealPeer:
    """A real net-mesh node in its own process, which ends with `close`, or at the latest with this process."""

    def __init__(
        self,
        *,
        psk: bytes,
        seed: bytes | None = None,
        bind: str = "127.0.0.1:0",
        channels: Sequence[Mapping[str, Any]] = (),
        heartbeat_interval_ms: int | None = None,
        session_timeout_ms: int | None = None,
        subnet: Sequence[int] | None = None,
        subnet_policy: Mapping[str, Any] | None = None,
        permissive_channels: bool | None = None,
        num_shards: int = 1,
        timeout_s: float = TIMEOUT_S,
        packages: Path | None = None,
        **options: Any,
    ) -> None:
        """Start the process and create the node, which receives nothing before `start`.

        `channels` are arguments of the binding's `register_channel`, `options` further arguments of its `NetMesh`. With
        more than one shard, `poll` sees only the first. `packages` is a directory into which another version of the
        package was installed (`pip install --target`). Raises ConfigError if the package is not installed.
        """
        if packages is None and importlib.util.find_spec(realnode.MODULE) is None:
            raise ConfigError(PACKAGE, f"RealPeer needs this package; run pip install {PACKAGE}=={VERSION}")
        self.seed = os.urandom(32) if seed is None else seed
        self.timeout_s = timeout_s
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._paused = False
        self._ended = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the peer
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", realnode.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ if packages is None else {**os.environ, "PYTHONPATH": str(packages)},
        )
        self._threads = [
            threading.Thread(target=self._write, args=(self._process.stdin,), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        given = {
            "heartbeat_interval_ms": heartbeat_interval_ms,
            "session_timeout_ms": session_timeout_ms,
            "subnet": subnet and list(subnet),
            "subnet_policy": subnet_policy and dict(subnet_policy),
            "permissive_channels": permissive_channels,
            "num_shards": num_shards,
            **options,
        }
        try:
            told = self.call("open", bind, psk.hex(), self.seed, [dict(channel) for channel in channels], **given)
        except BaseException:
            self.close()
            raise
        self.node_id: int = told["node_id"]
        self.entity_id: bytes = told["entity_id"]
        self.origin_hash: int = told["origin_hash"]
        self.public_key = bytes.fromhex(told["public_key"])
        """The Noise static key, which a peer needs to connect."""
        self.address: str = told["address"]
        """Address on which the node listens, as `host:port`."""

    # ── any command ─────────────────────────────────────────────────────────────────────────

    def begin(self, command: str, *arguments: Any, **options: Any) -> Future[Any]:
        """Call any method of the binding's node by name, and return a future without waiting.

        In a coroutine use `asyncio.wrap_future`. The future raises RealPeerError if the node raised an exception.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a request cannot be cancelled once it is sent
        number = next(self._numbers)
        self._waiting[number] = future
        self._outgoing.put(msgspec.msgpack.encode(Request(number, command, list(arguments), options)))
        if self._ended:  # the reader may have failed all futures just before this one was added
            self._fail_all()
        return future

    def call(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Call any method of the binding's node by name, and wait. Raises RealPeerError or Timeout."""
        return self._wait(command, self.begin(command, *arguments, **options), self.timeout_s)

    # ── sessions ────────────────────────────────────────────────────────────────────────────

    def accept(self, node_id: int) -> str:
        """Wait for a direct handshake from a node, before `start`; return the address it came from."""
        return str(self.call("accept", node_id))

    def connect(self, address: str, public_key: bytes, node_id: int) -> None:
        """Connect to a node that listens at `host:port`."""
        self.call("connect", address, public_key.hex(), node_id)

    def start(self) -> None:
        """Start receiving, and sending heartbeats."""
        self.call("start")

    def peer_count(self) -> int:
        """Return the number of connected peers."""
        return int(self.call("peer_count"))

    # ── channels ────────────────────────────────────────────────────────────────────────────

    def register_channel(self, name: str, **config: Any) -> None:
        """Configure a channel, with the binding's keywords."""
        self.call("register_channel", name, **config)

    def publish(self, channel: str, payload: bytes, **options: Any) -> dict[str, Any]:
        """Publish one event; return the binding's report: attempted, delivered, errors."""
        report: dict[str, Any] = self.call("publish", channel, payload, **options)
        return report

    def publish_all(self, channel: str, payloads: Sequence[bytes]) -> int:
        """Publish many events, waiting whenever a window is full; return the number of deliveries."""
        return int(self.call("publish_all", channel, payloads))

    def subscribe_channel(self, publisher_node_id: int, channel: str, token: bytes | None = None) -> None:
        """Subscribe and wait for the answer; a refusal raises RealPeerError of kind ChannelError or ChannelAuthError."""
        self.call("subscribe_channel", publisher_node_id, channel, token=token)

    def unsubscribe_channel(self, publisher_node_id: int, channel: str) -> None:
        """Unsubscribe and wait for the publisher's answer."""
        self.call("unsubscribe_channel", publisher_node_id, channel)

    # ── events and streams ──────────────────────────────────────────────────────────────────

    def poll(self, limit: int = realnode.POLL_LIMIT) -> list[PeerEvent]:
        """Return the received events."""
        return msgspec.convert(self.call("poll", limit), list[PeerEvent])

    def collect(self, count: int, seconds: float = 5.0) -> list[PeerEvent]:
        """Wait until `count` events were received or the time is up; return the received events."""
        future = self.begin("collect", count, seconds)
        return msgspec.convert(self._wait("collect", future, seconds + self.timeout_s), list[PeerEvent])

    def open_stream(self, node_id: int, stream_id: int, **options: Any) -> None:
        """Open a stream to a peer; options are `reliability`, `window_bytes` and `fairness_weight`."""
        self.call("open_stream", node_id, stream_id, **options)

    def send(self, node_id: int, stream_id: int, events: Sequence[bytes]) -> None:
        """Send events on an open stream in one call; without credit, raises RealPeerError of kind BackpressureError."""
        self.call("send", node_id, stream_id, events)

    def send_all(self, node_id: int, stream_id: int, events: Sequence[bytes]) -> None:
        """Send events on an open stream one by one, waiting for credit."""
        self.call("send_all", node_id, stream_id, events)

    def stream_stats(self, node_id: int, stream_id: int) -> dict[str, Any] | None:
        """Return the binding's statistics of a stream, or None if it is not open."""
        stats: dict[str, Any] | None = self.call("stream_stats", node_id, stream_id)
        return stats

    # ── capabilities and tokens ─────────────────────────────────────────────────────────────

    def announce_capabilities(self, capabilities: Mapping[str, Any]) -> None:
        """Announce capabilities to every connected peer, in the binding's format, such as {"tags": ["gpu"]}."""
        self.call("announce_capabilities", capabilities)

    def find_nodes(self, require: Mapping[str, Any]) -> list[int]:
        """Return the nodes that match a filter in the binding's format, such as {"require_tags": ["gpu"]}."""
        return [int(node_id) for node_id in self.call("find_nodes", require)]

    def issue_token(
        self, subject: bytes, scope: Sequence[str], channel: str, ttl_seconds: int, delegation_depth: int = 0
    ) -> bytes:
        """Issue a token signed by this node, for an entity id."""
        return bytes(self.call("issue_token", subject, scope, channel, ttl_seconds, delegation_depth))

    def install_token(self, token: bytes) -> None:
        """Check format and signature of a token with the binding's identity, and store it there.

        The binding's node does not use the stored token; present one with `subscribe_channel`.
        """
        self.call("install_token", token)

    # ── process ─────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        """Id of the node's process."""
        return self._process.pid

    def pause(self) -> None:
        """Stop the process with SIGSTOP, so that the node is silent. It is effective on return only on Linux."""
        self._paused = True
        self._process.send_signal(signal.SIGSTOP)
        if sys.platform == "linux":
            # Threads stop one after the other. WNOWAIT leaves the status for the later wait.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue a stopped process."""
        self._paused = False
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, like a crash."""
        self._process.kill()
        self._put_away()

    def close(self) -> None:
        """Shut the node down and end its process. Calling it again does nothing."""
        if self._paused:  # a stopped process does not answer `shutdown`
            self._process.kill()
        if not self._ended:
            try:
                self.begin("shutdown").result(GRACE_S)
                self._outgoing.put(None)
                self._process.wait(GRACE_S)
            except (RealPeerError, TimeoutError, subprocess.TimeoutExpired):
                self._process.kill()
        self._put_away()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, command: str, future: Future[Any], seconds: float) -> Any:
        try:
            return future.result(seconds)
        except TimeoutError as error:
            raise Timeout(f"real peer {command}", seconds) from error

    def _write(self, requests: IO[bytes]) -> None:
        """Write requests in a thread, because a stopped process does not read and must not block the caller."""
        with contextlib.suppress(OSError), requests:
            while (body := self._outgoing.get()) is not None:
                write_frame(requests, body)

    def _read(self, replies: IO[bytes]) -> None:
        """Resolve futures with replies until the process ends."""
        with replies:
            while (body := read_frame(replies)) is not None:
                reply = msgspec.msgpack.decode(body, type=Reply)
                future = self._waiting.pop(reply.number)
                if reply.error:
                    future.set_exception(RealPeerError(reply.error, reply.message))
                else:
                    future.set_result(reply.result)
        self._process.wait()
        self._ended = True
        self._fail_all()

    def _fail_all(self) -> None:
        """Fail all pending futures, because no reply will come."""
        while self._waiting:
            with contextlib.suppress(KeyError):
                self._waiting.popitem()[1].set_exception(self._gone())

    def _gone(self) -> RealPeerError:
        words = ""
        if not self._errors.closed:
            end = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, end - _STDERR_BYTES))
            words = self._errors.read().decode("utf-8", "replace").strip()
        return RealPeerError("Gone", f"the process of the real peer has exited{': ' if words else ''}{words}")

    def _put_away(self) -> None:
        """Wait for the exit of the process, and release its resources."""
        self._outgoing.put(None)
        self._process.wait()
        for thread in self._threads:
            thread.join()
        self._errors.close()
