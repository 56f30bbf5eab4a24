"""Interest (0x4D03), the subscriber's side: follows all channels of a publisher under a prefix.

An INTEREST is sent once a second until it is answered, for at most 5 s, and refreshed every 30 s. The messages are not
reliable: a repetition recovers whatever was lost, and renews the lease at the publisher. The publisher subscribes this
node before it answers, so from the first answer on all channels under the prefix are live, even if the rest of the
answer is still on the way. `Matched` reports every change. A CANCEL is repeated until it is answered too, because a
queue group would otherwise lose the events that still go to a member that left.

The publisher's side is engine/channels/interest_server.py; it receives all messages of the subprotocol and passes the
answers to this file. The messages are described in docs/wire/profile.md.
"""

from __future__ import annotations

import msgspec

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import Matched, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move_due_pairs, move_pairs
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.joined import JoinedChannels
from meshbus.errors import LocalProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.interest import Cancel, Interest, Matches, Verdict, encode_interest
from meshbus.wire.messages.membership import AckReason

# The times are those of docs/wire/profile.md.
RETRY_S = 1.0
"""Interval between tries that were not answered."""
TRIES = 5
"""Tries before an interest that was never answered fails."""
REFRESH_S = 30.0
"""Interval between refreshes of an answered interest."""
MAX_FOLLOWED = 256
"""Prefixes followed at one publisher: as many as a publisher accepts (MAX_INTERESTS)."""
MAX_CANCELED = 4096
"""Interests for which an unconfirmed CANCEL is repeated. Our choice: publishers can add to them with false answers."""
MAX_CHANNELS = 65_536
"""Channels recorded for one prefix. Our choice: a publisher decides how many it names."""


BOUNDS = (
    Bound(
        name="followed",
        what="prefixes that this node follows at a peer",
        by=By.USER,
        per_node=None,
        per={"peer": MAX_FOLLOWED},
        full="the call is refused",
        counter="raises LocalProtocolError",
    ),
    Bound(
        name="followed_channels",
        what="channels that a publisher names under a followed prefix",
        by=By.PUBLISHER,
        per_node=None,
        per={"prefix": MAX_CHANNELS},
        full="the channel is not joined",
        counter=Reason.INTEREST_TOO_MANY_MATCHES,
    ),
    Bound(
        name="canceled",
        what="prefixes whose cancellation is not confirmed",
        by=By.PEER,
        per_node=MAX_CANCELED,
        full="it is not canceled again",
        counter=Reason.INTEREST_UNEXPECTED_MATCHES,
    ),
)


class _FollowedPrefix:
    """One prefix followed at one publisher."""

    __slots__ = ("added", "answered", "due", "node_id", "order", "refused", "sent_at", "tries")

    def __init__(self, node_id: int, order: Interest) -> None:
        self.node_id = node_id
        self.order = order
        self.answered = False
        self.tries = 0
        """Tries since the last answer."""
        self.sent_at = 0.0
        self.due = 0.0
        self.added: set[ChannelName] = set()
        self.refused: dict[ChannelName, AckReason] = {}


class Following(Service):
    """The interests of this node at publishers."""

    def __init__(self, context: Context, joined: JoinedChannels) -> None:
        self._peers = context.peers
        self._joined = joined
        self._counters = context.counters
        self._entropy = context.entropy
        self._followed: dict[int, dict[int, _FollowedPrefix]] = {}
        """Interests by publisher and request id."""
        self._due: Deadlines[tuple[int, int]] = Deadlines()
        """When each interest is sent again."""
        self._canceled: dict[tuple[int, int], int] = {}
        """How often the CANCEL of each canceled interest was sent."""
        self._cancel_due: Deadlines[tuple[int, int]] = Deadlines()

    def follow(
        self, peer: Peer, prefix: str, now: float, out: Output, *, token: bytes = b"", queue_group: str = ""
    ) -> int:
        """Follow all channels of a publisher under a prefix, and return the number that `Matched` carries.

        Raises LocalProtocolError if the peer did not negotiate the subprotocol, if too many prefixes are followed, or if
        the message does not fit one packet.
        """
        if not peer.uses(Subprotocol.INTEREST):
            raise LocalProtocolError(
                f"peer {peer.node_id:016x} did not negotiate prefixes (0x4d03); subscribe to its channels one by one"
            )
        followed_by_request = self._followed.setdefault(peer.node_id, {})
        if len(followed_by_request) >= MAX_FOLLOWED:
            raise LocalProtocolError(
                f"this node already follows {MAX_FOLLOWED} prefixes at peer {peer.node_id:016x}, the limit;"
                " unfollow some first"
            )
        request = int.from_bytes(self._entropy(8), "little")
        while request in followed_by_request:
            request = request + 1 & 0xFFFFFFFFFFFFFFFF
        followed = _FollowedPrefix(
            peer.node_id, Interest(req=request, prefix=prefix, queue_group=queue_group, token=token)
        )
        self._send(peer, followed, now, out)
        followed_by_request[request] = followed
        return request

    def token_renewed(self, old: bytes, new: bytes) -> None:
        """Send interests that have the old token with the new one from now on; publishers that keep the old one get it."""
        for followed_by_request in self._followed.values():
            for followed in followed_by_request.values():
                if followed.order.token == old:
                    followed.order = msgspec.structs.replace(followed.order, token=new)

    def unfollow(self, node_id: int, request: int, now: float, out: Output) -> bool:
        """Cancel an interest, and return whether it existed. Events that still arrive are no longer delivered for it."""
        followed = self._followed.get(node_id, {}).pop(request, None)
        if followed is None:
            return False
        self._due.drop((node_id, request))
        for channel in followed.added:
            self._joined.remove(node_id, channel, request)
        self._canceled[node_id, request] = 0
        self._cancel(node_id, request, now, out)
        return True

    def followed(self, node_id: int) -> dict[int, str]:
        """Return the prefixes followed at a publisher, by request id."""
        return {request: followed.order.prefix for request, followed in self._followed.get(node_id, {}).items()}

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Continue to follow the channels of a publisher that has another id."""
        for request, followed in self._followed.pop(old, {}).items():
            followed.node_id = new
            self._followed.setdefault(new, {})[request] = followed
        move_due_pairs(self._due, old, new)
        move_pairs(self._canceled, old, new)
        move_due_pairs(self._cancel_due, old, new)
        peer = self._peers.get(new)
        if peer is not None:
            self.agreed(peer, now, out)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End the interests that a peer that is gone never answered; the others are sent again when it is back."""
        if isinstance(down, PeerGone):
            for request, followed in list(self._followed.get(down.node_id, {}).items()):
                if not followed.answered:
                    self.unfollow(down.node_id, request, now, out)
                    out.control.append(Matched(request, down.node_id, gone=True))

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Send all interests again to a publisher that had failed."""
        self.agreed(peer, now, out)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Send all interests again to a publisher that negotiated the subprotocol."""
        if peer.uses(Subprotocol.INTEREST):
            for followed in self._followed.get(peer.node_id, {}).values():
                self._send(peer, followed, now, out)

    def unknown_stream(self, node_id: int, now: float) -> bool:
        """Handle a publication on a stream of unknown name: an answer may be lost, so ask again soon.

        Returns False if nothing is followed at this publisher, so that no answer can name the stream.
        """
        followed_by_request = self._followed.get(node_id)
        if not followed_by_request:
            return False
        for followed in followed_by_request.values():
            soon = max(now, followed.sent_at + RETRY_S)
            if soon < followed.due:
                self._send_at(followed, soon)
        return True

    def on_matches(self, peer: Peer, answer: Matches, now: float, out: Output) -> None:
        """Handle the answer of a publisher to an interest."""
        followed = self._followed.get(peer.node_id, {}).get(answer.req)
        if followed is None:
            self._receive_late(peer, answer, now, out)
            return
        first, followed.answered, followed.tries = not followed.answered, True, 0
        self._send_at(followed, now + REFRESH_S)
        news = self._apply(followed, answer)
        if first or news.added or news.removed or news.refused:
            out.control.append(news)

    def next_timer(self) -> float | None:
        """Return the earliest time to send something again, or None."""
        times = (self._due.next(), self._cancel_due.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send again what is due, and give up interests that were never answered."""
        for node_id, request in self._cancel_due.over(now):
            self._cancel(node_id, request, now, out)
        for node_id, request in self._due.over(now):
            followed, peer = self._followed[node_id][request], self._peers.get(node_id)
            if not followed.answered and followed.tries >= TRIES:
                self._counters.add("timeout", "interest")
                self.unfollow(node_id, request, now, out)
                out.control.append(Matched(request, node_id, timed_out=True))
            elif peer is not None and peer.uses(Subprotocol.INTEREST):
                self._send(peer, followed, now, out)
            else:
                self._wait(followed, now)

    def _send(self, peer: Peer, followed: _FollowedPrefix, now: float, out: Output) -> None:
        peer.send_message(Subprotocol.INTEREST, encode_interest(followed.order), out)
        followed.sent_at = now
        self._wait(followed, now)

    def _wait(self, followed: _FollowedPrefix, now: float) -> None:
        """Schedule the next try: soon at first, and at the refresh interval after many tries without an answer."""
        followed.tries += 1
        self._send_at(followed, now + (RETRY_S if followed.tries <= TRIES else REFRESH_S))

    def _send_at(self, followed: _FollowedPrefix, time: float) -> None:
        followed.due = time
        self._due.set((followed.node_id, followed.order.req), time)

    def _cancel(self, node_id: int, request: int, now: float, out: Output) -> None:
        """Send an unconfirmed CANCEL again, or give it up."""
        peer = self._peers.get(node_id)
        tries = self._canceled[node_id, request]
        if tries >= TRIES or peer is None or not peer.uses(Subprotocol.INTEREST):
            del self._canceled[node_id, request]
            return
        peer.send_message(Subprotocol.INTEREST, encode_interest(Cancel(req=request)), out)
        self._canceled[node_id, request] = tries + 1
        self._cancel_due.set((node_id, request), now + RETRY_S)

    def _receive_late(self, peer: Peer, answer: Matches, now: float, out: Output) -> None:
        """Handle an answer to an interest that was canceled or never existed."""
        key = (peer.node_id, answer.req)
        if key in self._canceled:
            # docs/wire/profile.md: an empty MATCHES confirms a CANCEL.
            if not answer.matches:
                del self._canceled[key]
                self._cancel_due.drop(key)
            return
        self._counters.count(Reason.INTEREST_UNEXPECTED_MATCHES)
        if answer.matches and len(self._canceled) < MAX_CANCELED:
            # The publisher still has the interest, so all our CANCELs were lost.
            self._canceled[key] = 0
            self._cancel(*key, now, out)

    def _apply(self, followed: _FollowedPrefix, answer: Matches) -> Matched:
        """Apply the verdicts of an answer, and return those that change something."""
        node_id, request = followed.node_id, followed.order.req
        added, removed, refused = [], [], []
        for match in answer.matches:
            channel, verdict = match.channel, match.verdict
            # A publisher must not make us join channels that we did not ask for.
            if not channel.startswith(followed.order.prefix):
                self._counters.count(Reason.INTEREST_FOREIGN_MATCH)
            elif verdict is Verdict.ADDED:
                followed.refused.pop(channel, None)
                if channel not in followed.added and self._has_room(followed):
                    followed.added.add(channel)
                    self._joined.add(node_id, channel, request)
                    added.append(channel)
            else:
                if channel in followed.added:
                    followed.added.remove(channel)
                    self._joined.remove(node_id, channel, request)
                    removed.append(channel)
                if verdict is Verdict.REMOVED:
                    followed.refused.pop(channel, None)
                elif followed.refused.get(channel) != verdict.reason and self._has_room(followed):
                    followed.refused[channel] = verdict.reason
                    refused.append((channel, verdict.reason))
        return Matched(request, node_id, tuple(added), tuple(removed), tuple(refused))

    def _has_room(self, followed: _FollowedPrefix) -> bool:
        if len(followed.added) + len(followed.refused) < MAX_CHANNELS:
            return True
        self._counters.count(Reason.INTEREST_TOO_MANY_MATCHES)
        return False
