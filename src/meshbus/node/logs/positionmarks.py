"""Marks in received logs: which events are those of a replicated channel, and at which position (log/positions.py).

The leader of a replicated channel numbers what it sends by the positions in the log, and its packets name it as the origin.
So what a member sends is marked, from the first event of each member on, before that is appended. Whether a node is a
member follows from the configuration: without the entry of the channel nothing is marked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.errors import LogError
from meshbus.log.positions import MAX_MARKS, Mark, add_mark
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.wire.messages.reliable import CLOCK_NUMBERS

BOUNDS = (
    Bound(
        name="position_marks",
        what="members of a replicated channel whose events are marked in a received log",
        by=By.PUBLISHER,
        per_node=None,
        per={"channel": MAX_MARKS},
        full="events of further members are logged without a mark",
        cost="one read of the marks",
        counter="fail.log_mark",
    ),
)

_logger = logging.getLogger("meshbus.node")


class PositionMarks:
    """The marks of all received logs of a node."""

    def __init__(self, log_id: Callable[[ChannelName], bytes], counters: Counters) -> None:
        """Start without marks; `log_id` returns the id of the log of a replicated channel."""
        self.members: Callable[[ChannelName], Collection[int]] = lambda _channel: ()
        """Returns the members of a channel, as far as they are known; none if it is not replicated."""
        self._log_id = log_id
        self._counters = counters
        self._marked: dict[ChannelName, set[int]] = {}
        """Origins that are marked in the log of a channel."""

    def take(self, channel: ChannelName, batch: EventBatch, folder: Path, next_seq: int) -> None:  # hot: bench_stream
        """Mark the sender of a batch that is appended next, if its numbers are positions in a replicated log."""
        if batch.pub_seq is None or batch.pub_seq >= CLOCK_NUMBERS:
            return
        marked = self._marked.get(channel)
        if marked is not None and batch.origin_hash in marked:
            return
        if batch.publisher in self.members(channel):
            self._mark(channel, batch, folder, next_seq)

    def _mark(self, channel: ChannelName, batch: EventBatch, folder: Path, next_seq: int) -> None:
        mark = Mark(self._log_id(channel).hex(), f"{batch.origin_hash:016x}", next_seq)
        try:
            # On the loop: a member is marked once, and its events must not be in the log without the mark.
            done = add_mark(folder, mark)
        except LogError as error:
            _logger.warning("events received on %s are logged without their position: %s", channel, error)
            done = False
        if done:
            self._marked.setdefault(channel, set()).add(batch.origin_hash)
        else:
            self._counters.add("fail", "log_mark", len(batch))
