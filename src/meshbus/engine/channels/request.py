"""Request and reply (0x4D06): sends requests to the responder of a channel at a peer, and returns its replies.

    requester                         responder
    ask ──────── REQUEST ───────────► policy? responder? room? ── no ──► REPLY with the reason, at once
                                      Requested
    Replied ◄─── REPLY ────────────── reply, any number of times, until one is the last
    cancel, or timeout ────────────── CANCEL ──► RequestEnded

Every request ends exactly once at the requester: with a last reply, with a `RequestFailed` that says why, or by
`cancel`. Later replies are counted and dropped. The responder drops a request at its deadline. Messages use a reliable
stream, so nothing is repeated here. The layout is in wire/messages/request.py and docs/wire/profile.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil, isfinite
from typing import Protocol

import msgspec

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import (
    EndReason,
    PeerFailed,
    PeerGone,
    Replied,
    Requested,
    RequestEnded,
    RequestFailed,
    RequestFault,
)
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import add_up, move_due_pairs, move_pairs
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import DeliveryError, LocalProtocolError, PeerError, PeerFault, RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.request import (
    MAX_REPLY_PAYLOAD,
    Cancel,
    Reply,
    ReplyStatus,
    Request,
    RequestMessage,
    decode_request,
    encode_request,
)
from meshbus.wire.messages.revocation import Revocation, Revoked

MAX_PENDING = 4096
"""Open requests of this node, to all peers. Our choice."""
MAX_SERVING = 4096
"""Open requests to this node's responders, from all peers. Our choice."""
MAX_SERVING_PER_PEER = 256
"""Our choice: a sixteenth of all, so that one peer cannot take them all."""
MAX_SERVING_BYTES = 256 << 20
"""Bytes of the requests that wait for an answer. Our choice: four of the largest size."""
MAX_SERVING_BYTES_PER_PEER = 64 << 20
REQUEST_US = 65.0
"""What a request costs besides its message, in microseconds: a task, the caller's handler apart, and a reply."""

_MAX_ID = 0xFFFFFFFFFFFFFFFF
_MAX_DEADLINE_MS = 0xFFFFFFFF

_REFUSALS = {
    AckReason.UNAUTHORIZED: ReplyStatus.DENIED,
    AckReason.UNKNOWN_CHANNEL: ReplyStatus.UNKNOWN_CHANNEL,
    AckReason.RATE_LIMITED: ReplyStatus.BUSY,
    AckReason.TOO_MANY_CHANNELS: ReplyStatus.BUSY,
}

_REASONS = {
    ReplyStatus.NO_RESPONDER: Reason.REFUSE_REQUEST_NO_RESPONDER,
    ReplyStatus.UNKNOWN_CHANNEL: Reason.REFUSE_REQUEST_UNKNOWN_CHANNEL,
    ReplyStatus.DENIED: Reason.REFUSE_REQUEST_DENIED,
    ReplyStatus.BUSY: Reason.REFUSE_REQUEST_BUSY,
    ReplyStatus.EXPIRED: Reason.REFUSE_REQUEST_EXPIRED,
}
"""The reason under which a refusal that was sent to a requester is counted."""

MayRequest = Callable[[Peer, ChannelName, float], AckReason]
"""Returns why the policy of a channel refuses a request, or `AckReason.NONE`."""
LimitOf = Callable[[ChannelName], int]
"""Returns the largest request and reply of a channel, in bytes."""


BOUNDS = (
    Bound(
        name="requests",
        what="requests that wait for a reply",
        by=By.USER,
        per_node=MAX_PENDING,
        full="the call is refused",
        counter="raises DeliveryError",
    ),
    Bound(
        name="serving",
        what="requests of peers that wait for the answer of this node",
        by=By.PEER,
        per_node=MAX_SERVING,
        per={"peer": MAX_SERVING_PER_PEER},
        full="the new one is refused as busy",
        counter=Reason.REFUSE_REQUEST_BUSY,
    ),
    Bound(
        name="serving_bytes",
        what="bytes of the requests that wait for the answer of this node",
        by=By.PEER,
        per_node=MAX_SERVING_BYTES,
        per={"peer": MAX_SERVING_BYTES_PER_PEER},
        unit="bytes",
        full="the new one is refused as busy",
        counter=Reason.REFUSE_REQUEST_BUSY,
    ),
)


class SendReliable(Protocol):
    """Sends one message on the peer's reliable stream of a subprotocol."""

    def __call__(self, peer: Peer, subprotocol_id: int, message: bytes, now: float, out: Output, /) -> None:
        """Send, or raise DeliveryError if the stream is full."""


class _OpenRequest(msgspec.Struct, frozen=True):
    node_id: int
    channel: ChannelName


class Requester:
    """The requester's side: sends requests, and matches the replies to them."""

    def __init__(self, context: Context, send: SendReliable, limit_of: LimitOf) -> None:
        self._peers = context.peers
        self._counters = context.counters
        self._send = send
        self._limit_of = limit_of
        # A random start: a late reply to a request from before a restart must not match a new one.
        self._next = int.from_bytes(context.entropy(8), "little")
        self._pending: dict[int, _OpenRequest] = {}
        self._deadlines: Deadlines[int] = Deadlines()

    def __len__(self) -> int:
        return len(self._pending)

    def ask(
        self, peer: Peer, channel: ChannelName, payload: bytes, now: float, out: Output, *, timeout_s: float
    ) -> int:
        """Send a request to the responder of a channel at a peer, and return the number that the replies carry.

        Raises PeerError if the peer did not negotiate the subprotocol, LocalProtocolError if the timeout is not a
        positive time or the request is too large for the channel or the peer, and DeliveryError if too many requests are
        open or the stream is full.
        """
        if not peer.uses(Subprotocol.REQUEST):
            raise PeerError(
                PeerFault.UNREACHABLE, peer.node_id, "it does not accept requests (0x4d06 is not negotiated)"
            )
        if not (isfinite(timeout_s) and timeout_s > 0):
            raise LocalProtocolError(f"timeout_s must be positive and finite, got {timeout_s}")
        if len(self._pending) >= MAX_PENDING:
            raise DeliveryError(
                f"{len(self._pending)} requests already wait for a reply, the limit; wait for some of them"
            )
        _check_size("request", payload, channel, self._limit_of)
        request = self._next
        # Rounded up: the responder must not give up before the requester does.
        deadline_ms = min(ceil(timeout_s * 1000), _MAX_DEADLINE_MS)
        message = encode_request(Request(req=request, deadline_ms=deadline_ms, channel=channel, payload=payload))
        self._send(peer, Subprotocol.REQUEST, message, now, out)
        self._next = request + 1 & _MAX_ID
        self._pending[request] = _OpenRequest(peer.node_id, channel)
        self._deadlines.set(request, now + timeout_s)
        return request

    def cancel(self, request: int, now: float, out: Output) -> bool:
        """Cancel a request, and return whether it was open."""
        question = self._end(request)
        if question is None:
            return False
        self._send_cancel(question.node_id, request, now, out)
        return True

    def receive(self, peer: Peer, reply: Reply, out: Output) -> None:
        """Handle a reply of a peer."""
        question = self._pending.get(reply.req)
        if question is None:
            # profile.md §7: a late reply is dropped and counted.
            self._counters.count(Reason.REPLY_LATE)
        # Request ids can be guessed: only the peer that was asked may answer.
        elif question.node_id != peer.node_id:
            self._counters.count(Reason.REPLY_FOREIGN)
        elif reply.status is ReplyStatus.OK:
            if reply.last:
                self._end(reply.req)
            out.control.append(Replied(reply.req, peer.node_id, reply.payload, reply.last))
        else:
            self._fail(
                reply.req, question, RequestFault[reply.status.name], out, reply.payload.decode("utf-8", "replace")
            )

    def peer_gone(self, node_id: int, out: Output) -> None:
        """Fail all requests to a peer that failed or is gone."""
        for request, question in list(self._pending.items()):
            if question.node_id == node_id:
                self._fail(request, question, RequestFault.PEER_GONE, out)

    def renamed(self, old: int, new: int) -> None:
        """Expect the replies of a peer under its new id."""
        for request, question in self._pending.items():
            if question.node_id == old:
                self._pending[request] = msgspec.structs.replace(question, node_id=new)

    def next_timer(self) -> float | None:
        """Return the earliest deadline of a request, or None."""
        return self._deadlines.next()

    def tick(self, now: float, out: Output) -> None:
        """Fail the requests whose deadline has passed, and cancel them at the responders."""
        for request in self._deadlines.over(now):
            question = self._pending[request]
            self._fail(request, question, RequestFault.TIMEOUT, out)
            self._send_cancel(question.node_id, request, now, out)

    def _end(self, request: int) -> _OpenRequest | None:
        self._deadlines.drop(request)
        return self._pending.pop(request, None)

    def _fail(self, request: int, question: _OpenRequest, fault: RequestFault, out: Output, problem: str = "") -> None:
        self._end(request)
        self._counters.add("request", fault)
        out.control.append(RequestFailed(request, question.node_id, question.channel, fault, problem))

    def _send_cancel(self, node_id: int, request: int, now: float, out: Output) -> None:
        """Cancel a request at the responder; if that cannot be sent, the responder's own deadline ends it."""
        peer = self._peers.get(node_id)
        if peer is None or not peer.uses(Subprotocol.REQUEST):
            return
        try:
            self._send(peer, Subprotocol.REQUEST, encode_request(Cancel(req=request)), now, out)
        except DeliveryError:
            self._counters.count(Reason.CANCEL_UNSENT)


_Key = tuple[int, int]
"""Node id of the requester, and request id."""


class Responder:
    """The responder's side: accepts requests on channels, and sends the replies."""

    def __init__(self, context: Context, send: SendReliable, may_request: MayRequest, limit_of: LimitOf) -> None:
        self._peers = context.peers
        self._heir_id = context.revocations.heir_id
        self._counters = context.counters
        self._send = send
        self._may_request = may_request
        self._limit_of = limit_of
        self._channels: set[ChannelName] = set()
        self._open: Deadlines[_Key] = Deadlines()
        self._asked: dict[_Key, tuple[ChannelName, int]] = {}
        """The channel and the bytes of each open request."""
        self._per_peer: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        """Bytes of the open requests, by peer."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def channels(self) -> frozenset[ChannelName]:
        """The channels that have a responder."""
        return frozenset(self._channels)

    def serve(self, channel: ChannelName) -> None:
        """Accept requests on a channel."""
        self._channels.add(channel)

    def stop(self, channel: ChannelName) -> None:
        """Accept no more requests on a channel; open ones can still be answered."""
        self._channels.discard(channel)

    def receive(self, peer: Peer, message: Request | Cancel, now: float, out: Output) -> None:
        """Handle a request, or the cancellation of one."""
        key = (peer.node_id, message.req)
        if isinstance(message, Cancel):
            if self._close(key):
                out.control.append(RequestEnded(*key, EndReason.CANCELED))
            else:
                self._counters.count(Reason.CANCEL_LATE)
            return
        if key in self._open:
            self._counters.count(Reason.REQUEST_DUPLICATE)
            return
        refusal = self._refusal(peer, message, now)
        if refusal is not None:
            self._counters.count(_REASONS[refusal])
            self._answer(peer, Reply(req=message.req, status=refusal), now, out)
            return
        size, limit = len(message.payload), self._limit_of(message.channel)
        if size > limit:
            self._counters.count(Reason.REFUSE_LARGE)
            text = f"a request of {size} bytes is too large; max_event_bytes of the channel is {limit} at the responder"
            self._answer(peer, Reply(req=message.req, status=ReplyStatus.FAILED, payload=text.encode()), now, out)
            return
        deadline = now + message.deadline_ms / 1000
        self._open.set(key, deadline)
        self._asked[key] = message.channel, size
        self._per_peer[peer.node_id] += 1
        self._bytes[peer.node_id] += size
        out.control.append(Requested(*key, message.channel, message.payload, deadline))

    def reply(self, node_id: int, request: int, payload: bytes, now: float, out: Output, *, last: bool = True) -> bool:
        """Send a reply to a request, which ends with the last one; return False if the request is no longer open.

        Raises LocalProtocolError if the reply is too large for the channel or the peer, and DeliveryError if the stream is
        full. In both cases the request stays open.
        """
        asked = self._asked.get((self._heir_id(node_id), request))
        if asked is not None:
            _check_size("reply", payload, asked[0], self._limit_of)
        return self._finish(node_id, Reply(req=request, last=last, payload=payload), now, out)

    def fail(self, node_id: int, request: int, problem: str, now: float, out: Output) -> bool:
        """Reply that a request failed; return False if the request is no longer open."""
        text = problem.encode("utf-8", "replace")[:MAX_REPLY_PAYLOAD]
        reply = Reply(req=request, status=ReplyStatus.FAILED, payload=text)
        return self._finish(node_id, reply, now, out)

    def peer_gone(self, node_id: int, out: Output, reason: EndReason = EndReason.PEER_GONE) -> None:
        """Drop all requests of a peer that failed or is gone, or that may not have answers any more."""
        for key in [key for key in self._open if key[0] == node_id]:
            self._close(key)
            out.control.append(RequestEnded(*key, reason))

    def renamed(self, old: int, new: int) -> None:
        """Reply to the requests of a peer under its new id."""
        move_due_pairs(self._open, old, new)
        move_pairs(self._asked, old, new)
        add_up(self._per_peer, old, new)
        add_up(self._bytes, old, new)

    def next_timer(self) -> float | None:
        """Return the earliest deadline of an open request, or None."""
        return self._open.next()

    def tick(self, now: float, out: Output) -> None:
        """Drop the requests whose deadline has passed; the requester has its own timer, so nothing is sent."""
        for key in self._open.over(now):
            self._uncount(key)
            self._counters.add("request", "unanswered")
            out.control.append(RequestEnded(*key, EndReason.EXPIRED))

    def _refusal(self, peer: Peer, message: Request, now: float) -> ReplyStatus | None:
        """Return the status with which a request is refused, or None.

        Policy is checked first: a peer without permission must not learn whether there is a responder.
        """
        reason = self._may_request(peer, message.channel, now)
        if reason is not AckReason.NONE:
            return _REFUSALS[reason]
        if message.channel not in self._channels:
            return ReplyStatus.NO_RESPONDER
        # 0 is a time that is already over; requesters round up, so it does not come from a valid timeout.
        if message.deadline_ms == 0:
            return ReplyStatus.EXPIRED
        if len(self._open) >= MAX_SERVING or self._per_peer[peer.node_id] >= MAX_SERVING_PER_PEER:
            return ReplyStatus.BUSY
        size = len(message.payload)
        if (
            self._bytes[peer.node_id] + size > MAX_SERVING_BYTES_PER_PEER
            or self._bytes.total() + size > MAX_SERVING_BYTES
        ):
            return ReplyStatus.BUSY
        if not peer.work.afford(REQUEST_US, now):
            return ReplyStatus.BUSY
        return None

    def _finish(self, node_id: int, reply: Reply, now: float, out: Output) -> bool:
        node_id = self._heir_id(node_id)
        key, peer = (node_id, reply.req), self._peers.get(node_id)
        if key not in self._open or peer is None or not peer.uses(Subprotocol.REQUEST):
            self._counters.count(Reason.ANSWER_LATE)
            return False
        self._send(peer, Subprotocol.REQUEST, encode_request(reply), now, out)
        if reply.last:
            self._close(key)
        return True

    def _answer(self, peer: Peer, reply: Reply, now: float, out: Output) -> None:
        """Send a refusal; if the stream is full because the peer does not read its replies, count and drop it."""
        try:
            self._send(peer, Subprotocol.REQUEST, encode_request(reply), now, out)
        except DeliveryError:
            self._counters.count(Reason.REFUSAL_UNSENT)

    def _close(self, key: _Key) -> bool:
        was_open = self._open.drop(key)
        if was_open:
            self._uncount(key)
        return was_open

    def _uncount(self, key: _Key) -> None:
        node_id = key[0]
        self._per_peer[node_id] -= 1
        self._bytes[node_id] -= self._asked.pop(key)[1]
        if not self._per_peer[node_id]:
            del self._per_peer[node_id], self._bytes[node_id]


class Requests(Service):
    """Both sides of request and reply, as one service."""

    def __init__(self, context: Context, send: SendReliable, may_request: MayRequest, limit_of: LimitOf) -> None:
        """Use `send` for reliable messages, `may_request` and `limit_of` for the policy of channels."""
        self.requester = Requester(context, send, limit_of)
        self.responder = Responder(context, send, may_request, limit_of)
        self._counters = context.counters

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle one message of the subprotocol."""
        try:
            decoded: RequestMessage = decode_request(message)
        except RemoteProtocolError:
            self._counters.count(Reason.REQUEST_MALFORMED)
            return
        if isinstance(decoded, Reply):
            self.requester.receive(peer, decoded, out)
        else:
            self.responder.receive(peer, decoded, now, out)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End all requests to and from a peer that failed or is gone."""
        self.requester.peer_gone(down.node_id, out)
        self.responder.peer_gone(down.node_id, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Continue the requests to and from a peer that has another id."""
        self.requester.renamed(old, new)
        self.responder.renamed(old, new)

    def revoked(self, record: Revocation, now: float, out: Output) -> None:
        """End the open requests of a peer that may not send any more."""
        if record.what in {Revoked.PUBLISH, Revoked.SUBSCRIBE}:
            self.responder.peer_gone(record.node_id, out, EndReason.REVOKED)

    def next_timer(self) -> float | None:
        """Return the earliest deadline of both sides, or None."""
        times = (self.requester.next_timer(), self.responder.next_timer())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """End the requests whose deadline has passed, on both sides."""
        self.requester.tick(now, out)
        self.responder.tick(now, out)


def _check_size(what: str, payload: bytes, channel: ChannelName, limit_of: LimitOf) -> None:
    limit = limit_of(channel)
    if len(payload) > limit:
        raise LocalProtocolError(
            f"a {what} of {len(payload)} bytes is too large for {str(channel)!r}: max_event_bytes is {limit}; raise it for the"
            " channel, or send less"
        )
