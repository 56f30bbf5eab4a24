"""A log that nodes share, without any node: appends can be held back, and be known or not known to have worked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from meshbus.compute.ledger import encode_entry
from meshbus.errors import Timeout
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.daemons.daemoninput import InputReader
from meshbus.node.daemons.daemonledger import DaemonLedger


class SharedLog:
    """One order for all its readers."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.late: list[list[bytes]] = []
        """What was appended, and has not arrived."""
        self.unknown = 0
        """How many of the next appends fail, although they arrive later."""
        self._wake: list[Callable[[], None]] = []

    def ledger(self, node: int) -> DaemonLedger:
        """Return the ledger as a node has it."""
        publisher = SimpleNamespace(publish_batch=self._publish, close=_nothing)

        def read(wake: Callable[[], None]) -> InputReader:
            self._wake.append(wake)
            return cast("InputReader", _Reader(self))

        return DaemonLedger(node, cast("ChannelPublisher", publisher), read, lambda _node: True)

    def arrive(self, *entries: Any) -> None:
        """Let what is late arrive, or entries of others."""
        late, self.late = self.late, []
        for payloads in late:
            self._add(payloads)
        self._add([encode_entry(entry) for entry in entries])

    async def _publish(self, payloads: Sequence[bytes]) -> Any:
        if self.unknown:
            self.unknown -= 1
            self.late.append(list(payloads))
            raise Timeout("an append", 1.0)
        return SimpleNamespace(log_seq=self._add(payloads))

    def _add(self, payloads: Sequence[bytes]) -> int:
        first = len(self.payloads)
        self.payloads += payloads
        for wake in self._wake:
            wake()
        return first


class _Reader:
    """Reads the log from its beginning."""

    def __init__(self, log: SharedLog) -> None:
        self._log = log
        self._next = 0

    def ready(self) -> list[tuple[int, list[bytes]]]:
        return [(self._next, self._log.payloads[self._next :])]

    def taken(self, next_seq: int) -> None:
        self._next = next_seq

    async def close(self) -> None:
        pass


async def _nothing() -> None:
    pass
