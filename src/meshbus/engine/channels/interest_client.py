"""Interest (0x4D03) at the subscriber: the prefixes that we follow at publishers.

An INTEREST is sent until it is answered, once a second and for 5 s at most, and again every 30 s from then on, because
neither it nor its answers are confirmed: a repetition brings back whatever was lost, and renews the lease that the
publisher gives. The publisher subscribes us before it answers, so the first answer means that everything under the
prefix is live, whatever of the answer is still on its way. `Matched` tells every change. A CANCEL is repeated in the
same way until it is answered, because the share of a queue group must not go to one who left.

The publisher's side is engine/channels/interest_server.py, which hands answers on to this file.
"""

from __future__ import annotations

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import Matched
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.joined import JoinedChannels
from meshbus.errors import LocalProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.interest import Cancel, Interest, Matches, Verdict, encode_interest
from meshbus.wire.messages.membership import AckReason

RETRY_S = 1.0
TRIES = 5
REFRESH_S = 30.0
MAX_FOLLOWED = 256
"""Prefixes at one publisher: as many as it takes."""
MAX_CANCELED = 4096
"""Interests that publishers believe in and we do not, taken back at once."""
MAX_CHANNELS = 65_536
"""Channels of one prefix that we keep track of."""


class _Wish:
    """One prefix at one publisher."""

    __slots__ = ("added", "answered", "due", "node_id", "order", "refused", "sent_at", "tries")

    def __init__(self, node_id: int, order: Interest) -> None:
        self.node_id = node_id
        self.order = order
        self.answered = False
        self.tries = 0
        """Since the last answer."""
        self.sent_at = 0.0
        self.due = 0.0
        self.added: set[ChannelName] = set()
        self.refused: dict[ChannelName, AckReason] = {}


class Following(Service):
    """Our interests at others."""

    def __init__(self, context: Context, joined: JoinedChannels) -> None:
        self._peers = context.peers
        self._joined = joined
        self._counters = context.counters
        self._entropy = context.entropy
        self._wishes: dict[int, dict[int, _Wish]] = {}
        """By publisher and request."""
        self._due: Deadlines[tuple[int, int]] = Deadlines()
        """When each of them is sent again."""
        self._canceled: dict[tuple[int, int], int] = {}
        """How often the CANCEL of those taken back was sent."""
        self._cancel_due: Deadlines[tuple[int, int]] = Deadlines()

    def follow(
        self, peer: Peer, prefix: str, now: float, out: Output, *, token: bytes = b"", queue_group: str = ""
    ) -> int:
        """Ask a publisher for all its channels under a prefix, and return the number that `Matched` will repeat.

        Raises LocalProtocolError when the peer does not speak the subprotocol, and for what does not fit.
        """
        if not peer.uses(Subprotocol.INTEREST):
            raise LocalProtocolError(
                f"peer {peer.node_id:016x} did not negotiate prefixes (0x4d03): subscribe to its channels one by one"
            )
        wishes = self._wishes.setdefault(peer.node_id, {})
        if len(wishes) >= MAX_FOLLOWED:
            raise LocalProtocolError(f"{MAX_FOLLOWED} prefixes are followed at peer {peer.node_id:016x} already")
        request = int.from_bytes(self._entropy(8), "little")
        while request in wishes:
            request = request + 1 & 0xFFFFFFFFFFFFFFFF
        wish = _Wish(peer.node_id, Interest(req=request, prefix=prefix, queue_group=queue_group, token=token))
        self._send(peer, wish, now, out)
        wishes[request] = wish
        return request

    def unfollow(self, node_id: int, request: int, now: float, out: Output) -> bool:
        """Take an interest back; False when there is none. What still arrives no longer counts as ours."""
        wish = self._wishes.get(node_id, {}).pop(request, None)
        if wish is None:
            return False
        self._due.drop((node_id, request))
        for channel in wish.added:
            self._joined.remove(node_id, channel, request)
        self._canceled[node_id, request] = 0
        self._cancel(node_id, request, now, out)
        return True

    def followed(self, node_id: int) -> dict[int, str]:
        """Return the prefixes that we follow at a publisher, by request."""
        return {request: wish.order.prefix for request, wish in self._wishes.get(node_id, {}).items()}

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Send all interests again to a publisher that had failed."""
        self.agreed(peer, now, out)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Send all interests again to a publisher with whom interest was negotiated."""
        if peer.uses(Subprotocol.INTEREST):
            for wish in self._wishes.get(peer.node_id, {}).values():
                self._send(peer, wish, now, out)

    def unknown_stream(self, node_id: int, now: float) -> bool:
        """Note a publication on a stream without a name: an answer may have been lost, so ask again soon.

        False when we follow nothing there, so that no name is to be expected.
        """
        wishes = self._wishes.get(node_id)
        if not wishes:
            return False
        for wish in wishes.values():
            soon = max(now, wish.sent_at + RETRY_S)
            if soon < wish.due:
                self._send_at(wish, soon)
        return True

    def on_matches(self, peer: Peer, answer: Matches, now: float, out: Output) -> None:
        """Take what a publisher says about an interest of ours."""
        wish = self._wishes.get(peer.node_id, {}).get(answer.req)
        if wish is None:
            self._receive_late(peer, answer, now, out)
            return
        first, wish.answered, wish.tries = not wish.answered, True, 0
        self._send_at(wish, now + REFRESH_S)
        news = self._apply(wish, answer)
        if first or news.added or news.removed or news.refused:
            out.control.append(news)

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do."""
        times = (self._due.next(), self._cancel_due.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Repeat what is due, and give up on what was never answered."""
        for node_id, request in self._cancel_due.over(now):
            self._cancel(node_id, request, now, out)
        for node_id, request in self._due.over(now):
            wish, peer = self._wishes[node_id][request], self._peers.get(node_id)
            if not wish.answered and wish.tries >= TRIES:
                self._counters.add("timeout", "interest")
                self.unfollow(node_id, request, now, out)
                out.control.append(Matched(request, node_id, timed_out=True))
            elif peer is not None and peer.uses(Subprotocol.INTEREST):
                self._send(peer, wish, now, out)
            else:
                self._wait(wish, now)

    def _send(self, peer: Peer, wish: _Wish, now: float, out: Output) -> None:
        peer.send_message(Subprotocol.INTEREST, encode_interest(wish.order), out)
        wish.sent_at = now
        self._wait(wish, now)

    def _wait(self, wish: _Wish, now: float) -> None:
        """Come back soon for the answer, and later when many tries got none."""
        wish.tries += 1
        self._send_at(wish, now + (RETRY_S if wish.tries <= TRIES else REFRESH_S))

    def _send_at(self, wish: _Wish, time: float) -> None:
        wish.due = time
        self._due.set((wish.node_id, wish.order.req), time)

    def _cancel(self, node_id: int, request: int, now: float, out: Output) -> None:
        """Send a CANCEL that is not confirmed yet, or give up on it."""
        peer = self._peers.get(node_id)
        tries = self._canceled[node_id, request]
        if tries >= TRIES or peer is None or not peer.uses(Subprotocol.INTEREST):
            del self._canceled[node_id, request]
            return
        peer.send_message(Subprotocol.INTEREST, encode_interest(Cancel(req=request)), out)
        self._canceled[node_id, request] = tries + 1
        self._cancel_due.set((node_id, request), now + RETRY_S)

    def _receive_late(self, peer: Peer, answer: Matches, now: float, out: Output) -> None:
        """Take an answer to an interest that we have taken back, or never had."""
        key = (peer.node_id, answer.req)
        if key in self._canceled:
            if not answer.matches:
                del self._canceled[key]
                self._cancel_due.drop(key)
            return
        self._counters.count(Reason.INTEREST_UNEXPECTED_MATCHES)
        if answer.matches and len(self._canceled) < MAX_CANCELED:
            # The publisher still believes in it: all our CANCELs were lost.
            self._canceled[key] = 0
            self._cancel(*key, now, out)

    def _apply(self, wish: _Wish, answer: Matches) -> Matched:
        """Take the verdicts over, and return those that are news."""
        node_id, request = wish.node_id, wish.order.req
        added, removed, refused = [], [], []
        for match in answer.matches:
            channel, verdict = match.channel, match.verdict
            if not channel.startswith(wish.order.prefix):
                self._counters.count(Reason.INTEREST_FOREIGN_MATCH)
            elif verdict is Verdict.ADDED:
                wish.refused.pop(channel, None)
                if channel not in wish.added and self._has_room(wish):
                    wish.added.add(channel)
                    self._joined.add(node_id, channel, request)
                    added.append(channel)
            else:
                if channel in wish.added:
                    wish.added.remove(channel)
                    self._joined.remove(node_id, channel, request)
                    removed.append(channel)
                if verdict is Verdict.REMOVED:
                    wish.refused.pop(channel, None)
                elif wish.refused.get(channel) != verdict.reason and self._has_room(wish):
                    wish.refused[channel] = verdict.reason
                    refused.append((channel, verdict.reason))
        return Matched(request, node_id, tuple(added), tuple(removed), tuple(refused))

    def _has_room(self, wish: _Wish) -> bool:
        if len(wish.added) + len(wish.refused) < MAX_CHANNELS:
            return True
        self._counters.count(Reason.INTEREST_TOO_MANY_MATCHES)
        return False
