"""Fair queue for forwarded packets: bounded, round robin between streams, urgent packets first (mesh.md §7).

Each stream has its own queue; the streams take turns of `QUANTUM` × weight packets. Urgent packets go first, but after
`URGENT_RUN` of them one ordinary packet is sent, because any sender can mark its packets as urgent and must not starve
the others. A packet that does not fit is refused; the caller counts it. engine/routes/forward.py uses the queue only
while the socket is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

Item = TypeVar("Item")

QUANTUM = 16
"""Packets of one turn at weight 1 (mesh.md §7)."""
DEPTH = 1024
"""Packets of one stream that may wait (mesh.md §7)."""
MAX_BYTES = 32 << 20
"""Bytes that may wait in all streams together. Our choice: the memory that a full socket may cost."""
URGENT_RUN = 64
"""Urgent packets in a row before an ordinary one is sent. Our choice: four turns of a stream."""


BOUNDS = (
    Bound(
        name="forward_queue",
        what="bytes of packets for others that wait for the socket",
        by=By.PEER,
        per_node=MAX_BYTES,
        per={"stream, in packets": DEPTH},
        unit="bytes",
        full="the new packet is dropped",
        counter=Reason.CROWDED,
    ),
)


class FairQueue(Generic[Item]):
    """Queues of many streams that are served in turns."""

    __slots__ = ("_bytes", "_streams", "_turns", "_urgent", "_urgent_run", "depth", "max_bytes", "quantum")

    def __init__(self, *, quantum: int = QUANTUM, depth: int = DEPTH, max_bytes: int = MAX_BYTES) -> None:
        self.quantum = quantum
        self.depth = depth
        self.max_bytes = max_bytes
        self._bytes = 0
        self._streams: dict[Hashable, _Stream[Item]] = {}
        self._turns: deque[Hashable] = deque()
        self._urgent: deque[tuple[int, Item]] = deque()
        self._urgent_run = 0

    def __len__(self) -> int:
        return len(self._urgent) + sum(len(stream.items) for stream in self._streams.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all waiting packets."""
        return self._bytes

    def push(self, stream: Hashable, item: Item, size: int, *, weight: int = 1, urgent: bool = False) -> bool:
        """Append a packet; return False if there is no room for it."""
        # mesh.md §7: a full queue drops the new packet.
        if self._bytes + size > self.max_bytes:
            return False
        if urgent:
            if len(self._urgent) >= self.depth:
                return False
            self._urgent.append((size, item))
        else:
            queue = self._streams.get(stream)
            if queue is None:
                queue = self._streams[stream] = _Stream(self.quantum * weight)
                self._turns.append(stream)
            elif len(queue.items) >= self.depth:
                return False
            # The last packet sets the weight: the priority of a stream may change while its packets wait.
            queue.share = self.quantum * weight
            queue.items.append((size, item))
        self._bytes += size
        return True

    def pop(self) -> Item | None:
        """Remove and return the packet whose turn it is, or None if the queue is empty."""
        # mesh.md §7: urgent packets are served first; the limit on their run is ours.
        if self._urgent and (self._urgent_run < URGENT_RUN or not self._turns):
            self._urgent_run += 1
            return self._take(self._urgent)
        self._urgent_run = 0
        if not self._turns:
            return None
        key = self._turns[0]
        stream = self._streams[key]
        stream.left -= 1
        item = self._take(stream.items)
        # A stream without packets leaves at once, so that many short streams do not accumulate.
        if not stream.items:
            self._turns.popleft()
            del self._streams[key]
        elif stream.left <= 0:
            stream.left = stream.share
            self._turns.rotate(-1)
        return item

    def _take(self, items: deque[tuple[int, Item]]) -> Item:
        size, item = items.popleft()
        self._bytes -= size
        return item


class _Stream(Generic[Item]):
    __slots__ = ("items", "left", "share")

    def __init__(self, share: int) -> None:
        self.items: deque[tuple[int, Item]] = deque()
        self.share = share
        """Packets of one turn."""
        self.left = share
        """Packets left in the current turn."""
