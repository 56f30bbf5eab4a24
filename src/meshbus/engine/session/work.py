"""Work of peers: how much of this node's time the messages of one peer may take.

Handling a message costs more than sending it, and one packet carries up to 2027 messages. So every subprotocol says what
one of its messages costs here (`cost_us` in engine/services.py), and each peer has three limits:

    all messages of a peer                                        WORK_SHARE of a core
    what packets cost beyond what a packet costs its sender       EXCESS_SHARE of a core
    one packet                                                    LARGEST_US

Honest messages travel alone, except acknowledgements, and are far below them. Packets beyond a limit are dropped before
their messages are read, and counted; on a reliable stream they are not acknowledged, so that they come again later.

The costs are estimates in microseconds on an ordinary machine, not measurements: the same packets always have the same
fate. bench/bench_hostile.py compares them with the processor time that they stand for. Signatures, interests, punches and
handshakes are limited by their own services, by what they really do.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshbus.engine.base.counters import Counters
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason

WORK_SHARE, EXCESS_SHARE = 0.3, 0.1
"""Shares of a core that one peer gets. Our choice: two peers at their limits leave an honest stream more than a third."""
BURST_S = 2.0
"""Seconds of its share that a peer may use at once: thousands of subscriptions after a reconnect."""
PACKET_US = 100.0
"""What a packet may cost without being excess: about fifty times what it costs its sender to seal one."""
LARGEST_US = 35_000.0
"""What one packet may cost at all. Our choice: what fits into a packet of a reliable stream, and no more; a packet is handled
without a pause, and the streams of others wait for so long."""
DEFAULT_US = 20.0
"""Cost of a message whose subprotocol states none."""
STREAM_US = 40.0
"""Cost of the packets of one stream, in one drain, that this node did not ask for."""
_US = 1e-6


class PeerWork:
    """The limits of one peer."""

    __slots__ = ("_all", "_excess")

    def __init__(self) -> None:
        self._all = TokenBucket(WORK_SHARE / _US, BURST_S * WORK_SHARE / _US)
        self._excess = TokenBucket(EXCESS_SHARE / _US, BURST_S * EXCESS_SHARE / _US)

    def afford(self, cost_us: float, now: float) -> bool:
        """Take work of this cost from the peer's share, and return whether there was enough left."""
        if cost_us > LARGEST_US:
            return False
        if cost_us > PACKET_US and not self._excess.take(cost_us - PACKET_US, now):
            return False
        return self._all.take(cost_us, now)


class MessageWork:
    """What messages cost, by subprotocol."""

    __slots__ = ("_costs", "_counters")

    def __init__(self, costs: Mapping[int, float], counters: Counters) -> None:
        self._costs = costs
        self._counters = counters

    def admits(self, work: PeerWork, subprotocol_id: int, count: int, now: float) -> bool:
        """Return whether a packet with `count` messages may be handled; if not, count them as dropped."""
        if work.afford(count * self._costs.get(subprotocol_id, DEFAULT_US), now):
            return True
        self._counters.count(Reason.PEER_SHARE, count)
        return False
