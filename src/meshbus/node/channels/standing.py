"""Standing subscriptions: what the configuration subscribes to (`[[subscriptions]]`), kept as long as the node is open.

Nothing reads their events here. The node logs what arrives before it hands it to subscriptions (node/logs/logs.py), so that a
base records without a program. Peers that connect later are asked by node/channels/joining.py. What a peer refuses is asked for
again now and then, because its policy may change; a subscription that every peer refuses, or whose publisher is not
connected, also when a peer connects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from meshbus.config.subscription import SubscriptionEntry
from meshbus.engine.base.notices import Negotiated, PeerRecovered, SessionUp
from meshbus.errors import MeshError
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.peers.noticelog import Notice

RETRY_S = 30.0
"""Pause before subscribing again if nothing changes; publishers limit the rate of nodes that ask more often."""

_logger = logging.getLogger("meshbus.node")


class Standing:
    """The standing subscriptions of one node."""

    def __init__(
        self, subscribe: Callable[[SubscriptionEntry], Subscription], ask_again: Callable[[int, str], None]
    ) -> None:
        """Prepare; `ask_again` asks a peer, by its node id, for a channel that it had refused."""
        self._subscribe = subscribe
        self._ask_again = ask_again
        self._tasks = TaskOwner("a standing subscription", _logger)
        self._wakes: list[asyncio.Event] = []
        """One per subscription, set when another try may succeed."""

    def start(self, entries: Iterable[SubscriptionEntry]) -> None:
        """Begin to subscribe; returns at once."""
        for entry in entries:
            wake = asyncio.Event()
            self._wakes.append(wake)
            self._tasks.start(self._keep(entry, wake))

    def take(self, notice: Notice) -> None:
        """Handle what happened to the node: a new or recovered peer may publish what is missing."""
        if isinstance(notice, SessionUp | Negotiated | PeerRecovered):
            for wake in self._wakes:
                wake.set()

    def cancel(self) -> None:
        """Stop: the node is closing."""
        self._tasks.cancel()

    async def _keep(self, entry: SubscriptionEntry, wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            try:
                async with self._subscribe(entry) as subscription:
                    await self._drain(entry, subscription)
            except MeshError as error:
                _logger.info("not subscribed to %s: %s", entry.topic or "any channel", error)
            else:
                return  # the node closes its subscriptions when it closes
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await wake.wait()

    async def _drain(self, entry: SubscriptionEntry, subscription: Subscription) -> None:
        """Read until the subscription ends, and ask again for what was refused."""
        loop = asyncio.get_running_loop()
        due = loop.time() + RETRY_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    if await subscription.next_batch() is None:
                        return
            if loop.time() >= due:
                due = loop.time() + RETRY_S
                # A publisher judges the channels below a prefix by itself when its policy changes.
                for refusal in subscription.refused if entry.channel is not None else ():
                    self._ask_again(refusal.node_id, entry.topic)
