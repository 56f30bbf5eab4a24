"""Where newcomers connect: a TCP listener that is open only while an invite is.

Strangers reach it, so everything is bounded before anything is decided: connections of all and of one host, bytes (a hello has a
fixed length), and time. A host that was refused too often is not answered for a while. Somebody without a token costs a
lookup; with the id of an invite, which is not secret, one Diffie-Hellman. What a newcomer may is decided in inviting.py.

An answer is its length and the sealed bytes. Without a token there is nothing to seal with: length 0, one byte of length,
and the word of the reason, which the newcomer treats as a hint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress

from meshbus.config.spelling import Endpoint
from meshbus.engine.base.counters import Counters
from meshbus.errors import ConfigError, MalformedPacket
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.invites.inviting import Inviting, unix_now
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.limits import FailureThrottle
from meshbus.policy.reason import Reason
from meshbus.wire.joining import DONE_BYTES, HELLO_BYTES, LENGTH_BYTES

MAX_CONNECTIONS = 32
"""Newcomers at a time. Our choice: an exchange takes milliseconds."""
MAX_OF_HOST = 4
"""Connections of one host at a time, so that one host cannot keep others out."""
MAX_HOSTS = 1024
"""Hosts whose refusals are remembered."""
TOLERATED_REFUSALS = 8
"""Refusals of one host within a minute after which it is not answered. Our choice: people copy tokens wrongly now and then."""
HELLO_S = 5.0
"""How long a connection may take to send its hello: a few round trips of a slow link."""
DONE_S = 30.0
"""How long a newcomer that was admitted may take to store what it got, on a slow disk."""
LOOK_S = 60.0
"""How often the listener looks whether an invite is still open; the wall clock may be set meanwhile."""

BOUNDS = (
    Bound(
        name="join_connections",
        what="connections of newcomers, while an invite is open",
        by=By.OUTSIDER,
        per_node=MAX_CONNECTIONS,
        per={"host": MAX_OF_HOST, "connection, in bytes": HELLO_BYTES + DONE_BYTES},
        full="the oldest that has not sent its request goes; the new one is refused if all have, or for one host",
        counter=Reason.REFUSE_JOIN_BUSY,
    ),
    Bound(
        name="join_hosts",
        what="hosts that were refused to join lately",
        by=By.OUTSIDER,
        per_node=MAX_HOSTS,
        full="the one with the oldest window goes",
        counter=forgotten("join_hosts"),
    ),
)

_logger = logging.getLogger("meshbus.node")


class JoinListener:
    """Serves newcomers of one node."""

    def __init__(self, bind: Endpoint, inviting: Inviting, counters: Counters) -> None:
        self._bind = bind
        self._inviting = inviting
        self._counters = counters
        self._server: asyncio.Server | None = None
        self._served: set[asyncio.Task[object]] = set()
        self._silent: dict[asyncio.Task[object], None] = {}
        """Those of them that have not sent their hello, the oldest first."""
        self._hosts: Counter[str] = Counter()
        self._throttle: FailureThrottle[str] = FailureThrottle(
            TOLERATED_REFUSALS, throttle_s=60.0, max_peers=MAX_HOSTS, forget=counters.forgetting("join_hosts")
        )
        self._used = asyncio.Event()
        """Set when an invite was used, which may have been the last open one."""
        self._watching = TaskOwner("the listener for newcomers", _logger)

    @property
    def address(self) -> str | None:
        """Where newcomers connect; None while no invite is open."""
        if self._server is None:
            return None
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(Endpoint(host, port))

    async def open(self) -> None:
        """Listen, if that is not done already. Raises ConfigError if the system refuses."""
        if self._server is not None:
            return
        try:
            self._server = await asyncio.start_server(
                self._serve, self._bind.host or None, self._bind.port, limit=HELLO_BYTES, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            raise ConfigError(
                "join_bind",
                f"cannot listen for newcomers on {self._bind} (TCP): {error.strerror or error}; set join_bind to another address",
            ) from None

    async def keep(self) -> None:
        """Listen until the last invite is over, or stop if none is open. Raises ConfigError if the system refuses."""
        if self._inviting.last_end() is None:
            await self._stop()
            return
        await self.open()
        if not len(self._watching):
            self._watching.start(self._close_when_over())

    async def _close_when_over(self) -> None:
        while self._server is not None:
            end = self._inviting.last_end()
            if end is None:
                await self._stop()  # a new invite may open it again meanwhile
                continue
            self._used.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(end - unix_now(), 0.1), LOOK_S)):
                    await self._used.wait()

    async def close(self) -> None:
        """Stop listening and end the connections; closing twice is fine."""
        await self._watching.close()
        await self._stop()

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        host = str((writer.get_extra_info("peername") or ("unknown",))[0])
        refusal = self._turned_down(host)
        if refusal is not None:
            self._counters.count(refusal)
            writer.write(unsealed(refusal))
            writer.close()
            return
        self._served.add(task)
        self._silent[task] = None
        self._hosts[host] += 1
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await reader.readexactly(HELLO_BYTES)
            del self._silent[task]
            await self._exchange(host, hello, reader, writer)
        except TimeoutError:
            self._counters.count(Reason.JOIN_TIMEOUT)
            self._throttle.fail(host, time.monotonic())
        except (MalformedPacket, asyncio.IncompleteReadError):
            self._counters.count(Reason.JOIN_MALFORMED)
            self._throttle.fail(host, time.monotonic())
        except (ConnectionError, asyncio.CancelledError):
            pass  # the newcomer closed the connection, or the node is closing
        finally:
            self._served.discard(task)
            self._silent.pop(task, None)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
            writer.close()

    def _turned_down(self, host: str) -> Reason | None:
        """Return why a connection is not served, or None."""
        if self._throttle.throttled(host, time.monotonic()):
            return Reason.REFUSE_JOIN_THROTTLED
        if self._hosts[host] >= MAX_OF_HOST or not self._has_room():
            return Reason.REFUSE_JOIN_BUSY
        return None

    def _has_room(self) -> bool:
        """Return whether another connection is allowed; end the oldest without a hello to make room.

        A newcomer sends its hello at once, so those who only connect cannot keep it out.
        """
        if len(self._served) >= MAX_CONNECTIONS and self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            self._served.discard(oldest)
            oldest.cancel()
            self._counters.count(Reason.REFUSE_JOIN_BUSY)
        return len(self._served) < MAX_CONNECTIONS

    async def _exchange(
        self, host: str, hello: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        exchange = await self._inviting.receive(hello)
        if isinstance(exchange, Reason):
            self._throttle.fail(host, time.monotonic())
            writer.write(unsealed(exchange))
            return
        writer.write(len(exchange.sealed).to_bytes(LENGTH_BYTES, "little") + exchange.sealed)
        if exchange.refused:
            self._throttle.fail(host, time.monotonic())
        elif exchange.granted:
            self._throttle.succeed(host)
            with suppress(asyncio.IncompleteReadError):  # it stays bound to this newcomer, which may come again
                async with asyncio.timeout(DONE_S):
                    await self._inviting.confirm(exchange, await reader.readexactly(DONE_BYTES))
                    self._used.set()


def unsealed(reason: Reason) -> bytes:
    """Return the answer to somebody without a token."""
    word = reason.why.encode()
    return bytes(LENGTH_BYTES) + bytes((len(word),)) + word
