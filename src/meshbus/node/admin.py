"""The admin interface of an open node: one JSON object per line, over a unix socket that only its owner can open.

    {"do": "status"}                                        the identity and address of this node
    {"do": "peers"}                                         the nodes that it has sessions with, or dials
    {"do": "roster"}                                        the subscribers of its channels
    {"do": "counters"}                                      its counters, by kind and reason
    {"do": "channels"}                                      the channels that it knows, with subscribers and traffic
    {"do": "ping", "node": …, "timeout_s": …}               the round trip to a peer; without a node: to its only peer
    {"do": "connect", "address": …, "public_key": …}        connect to a node; with node_id for a net-mesh 0.23 node
    {"do": "publish", "channel": …, "payload": …}           publish one event, and report who got it
    {"do": "publish_once", "channel": …, "path": …,         publish the rows of an Arrow file that the channel's log does
     "writer": …, "batch": …}                               not have yet, and return their number
    {"do": "subscribe", "channel": …}                       a stream of events, until the next line or the end
    {"do": "request", "channel": …, "payload": …,           send a request to a node's responder, and return the reply
     "node": …, "timeout_s": …}
    {"do": "respond", "channel": …}                         a stream of requests of peers, each with a number
    {"do": "reply", "request": …, "payload": …}             answer one of them, or say with problem why not, on another connection
    {"do": "load", "channel": …, "events": …, "size": …}    publish the events of a load test
    {"do": "measure", "channel": …, "timeout_s": …}         measure the next load test that arrives
    {"do": "replicas"}                                      its replicated channels: role, leader, members, lag
    {"do": "replica_change", "change": …, "channel": …,     add a member, remove one, or transfer the lead to it; only at
     "node": …}                                             the leader. The node is given by its name or id
    {"do": "replica_verify", "channel": …, "repair": …}     compare its log of a replicated channel with the others
    {"do": "daemons"}                                       its daemons: where they run, their state and positions
    {"do": "daemon_run", "daemon": {"name": …, …}}          run or offer a daemon; the fields are those of DaemonWish
    {"do": "daemon_move", "daemon": …, "target": …,         move a daemon and wait until it has arrived; the daemon is
     "source": …, "timeout_s": …}                           given by its name or origin hash
    {"do": "daemon_logs", "daemon": …, "follow": …}         a stream of what happened to a daemon
    {"do": "daemon_stop", "daemon": …, "withdraw": …}       stop a daemon, and with withdraw do not let it move here
    {"do": "pins"}                                          the nodes that it has seen secure
    {"do": "pins_reset", "node": …}                         remove the pin of a node; without a node: all pins
    {"do": "policy"}                                        the policy in force: its file, its hash, and its version if signed
    {"do": "policy_apply", "path": …, "by": …}              apply the policy of a file, or read its own file again
    {"do": "rotate_psk", "path": …, "by": …}                replace the mesh key by that of a file, or read its own file again
    {"do": "rotate_tokens", "by": …}                        read its token files again
    {"do": "prepare_identity", "reason": …, "issuer": …}    make its next key, and the record that an issuer endorses
    {"do": "rotate_identity", "record": …, "timeout_s": …,  go on under another key
     "by": …}
    {"do": "invite", "name": …, "tags": …, "subnet": …,     make an invite, and return its token and where newcomers join
     "ttl_s": …, "valid_s": …, "approval": …, "by": …}
    {"do": "invites"}                                       its invites, with those that are over
    {"do": "invite_change", "change": …, "invite": …,       approve the newcomer of an invite, or withdraw an invite
     "by": …}
    {"do": "revocations"}                                   what issuers of the fleet revoked, and why
    {"do": "revocations_add", "record": …, "by": …}         put a signed revocation into effect in the whole fleet
    {"do": "key_of", "node": …}                             the public key of a node, given by its name or id
    {"do": "revoke", "issuer": …, "generation": …}          reject an issuer's older tokens

The answer is {"ok": true, "result": …}, or {"ok": false, "code": …, "fault": …, "problem": …} with the code of the error.
A stream begins with such an answer, whose result lists the publishers that accepted and refused, and continues with
{"event": …}, {"request": …} or {"line": …}; if the node ends it, the last line is an answer that is not ok and gives the reason, or one
that is ok if there is nothing more to say. A payload is text, or `payload_base64` if it is not UTF-8, or in `publish` the
`path` of a file; keys and ids are in hex. Every command uses the public API of the node. The socket itself is node/unix.py.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from meshbus.config.spelling import Endpoint
from meshbus.engine.base.batch import Event
from meshbus.engine.channels.publish import PublishReport
from meshbus.errors import UNDECODABLE, ConfigError, MeshError
from meshbus.names.identity import KEY_BYTES
from meshbus.names.subnet import SubnetId
from meshbus.node.channels.subscription import Subscription, WhenFull
from meshbus.node.daemons.daemoninfo import DaemonLine
from meshbus.node.daemons.daemonrows import DaemonWish, daemon_row, line_row, lines_of, move_row, start_wish
from meshbus.node.daemons.daemons import Daemons
from meshbus.node.loadtest import measure_load, send_load
from meshbus.node.node import Node
from meshbus.node.payload import payload_row
from meshbus.node.peers.info import PeerInfo
from meshbus.node.peers.redial import DialInfo, DialState
from meshbus.node.policies.revocationrows import record_given, revocation_row
from meshbus.node.policies.succession import REASON
from meshbus.node.replicas.replicastatus import ReplicaStatus
from meshbus.node.replicas.replicaverify import ReplicaRange
from meshbus.node.replying import Replies
from meshbus.node.unix import MAX_CONNECTIONS, MAX_LINE, LineServer, Stream
from meshbus.policy.invites import InviteSpec
from meshbus.wire.constants import MAX_LARGE_EVENT
from meshbus.wire.messages.revocation import encode_record

MAX_U32 = 0xFFFFFFFF
"""The largest generation of a token: the wire has 32 bits for it."""

MOST_NAMED = 10
"""Peers that an error names."""

_ID = re.compile(r"[0-9a-f]{16}")

_logger = logging.getLogger("meshbus.node")


class Request(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A command to a node; its fields are described in the module docstring."""


class Status(Request, frozen=True, tag="status"):
    """Return the identity and address of the node."""


class Peers(Request, frozen=True, tag="peers"):
    """Return the nodes that it has sessions with, or dials."""


class Roster(Request, frozen=True, tag="roster"):
    """Return the subscribers of its channels."""


class Counters(Request, frozen=True, tag="counters"):
    """Return its counters."""


class Channels(Request, frozen=True, tag="channels"):
    """Return the channels that it knows."""


class Ping(Request, frozen=True, tag="ping"):
    """Measure the round trip to a peer."""

    node: str | None = None
    """By default its only peer."""
    timeout_s: float = 5.0


class Connect(Request, frozen=True, tag="connect"):
    """Connect to a node."""

    address: str
    public_key: str
    node_id: str | None = None
    routed: bool = True
    profile: str = "auto"


class Publish(Request, frozen=True, tag="publish"):
    """Publish one event."""

    channel: str
    payload: str | None = None
    payload_base64: str | None = None
    path: str | None = None
    """A file on this machine whose bytes are the event, for one that is too large for a line."""
    reliable: bool | None = None


class PublishOnce(Request, frozen=True, tag="publish_once"):
    """Publish a batch that may have been published before, in whole or in part."""

    channel: str
    path: str
    """An Arrow IPC file on this machine with a column `payload`, and optionally `ts_ns` and `headers`."""
    writer: str
    batch: int


class Subscribe(Request, frozen=True, tag="subscribe"):
    """Start a stream of events."""

    channel: str
    publisher: str | None = None
    """Node id of the only publisher that is asked."""
    queue_group: str = ""
    when_full: WhenFull = WhenFull.DROP_OLDEST
    """By default a slow reader loses events instead of holding up the publisher."""
    since: int | str | None = None
    """Start in the publisher's log, at this publish number or at the `"first"` that is left."""


class Ask(Request, frozen=True, tag="request"):
    """Send a request to a responder of a peer."""

    channel: str
    payload: str | None = None
    payload_base64: str | None = None
    node: str | None = None
    """By default its only peer."""
    timeout_s: float = 5.0


class Respond(Request, frozen=True, tag="respond"):
    """Start a stream of requests."""

    channel: str


class Reply(Request, frozen=True, tag="reply"):
    """Answer a request of a stream."""

    request: int
    payload: str | None = None
    payload_base64: str | None = None
    problem: str | None = None
    """Instead of a payload: why there is no reply."""


class Load(Request, frozen=True, tag="load"):
    """Publish the events of a load test."""

    channel: str
    events: int
    size: int
    reliable: bool | None = None


class Measure(Request, frozen=True, tag="measure"):
    """Measure a load test."""

    channel: str
    timeout_s: float = 60.0


class Replicas(Request, frozen=True, tag="replicas"):
    """Return its replicated channels."""


class ReplicaChange(Request, frozen=True, tag="replica_change"):
    """Change the members of a replicated channel, or its leader."""

    change: Literal["add", "remove", "transfer"]
    channel: str
    node: str


class ReplicaVerify(Request, frozen=True, tag="replica_verify"):
    """Compare the replicas of a channel."""

    channel: str
    repair: bool = False


class ListDaemons(Request, frozen=True, tag="daemons"):
    """Return its daemons."""


class RunDaemon(Request, frozen=True, tag="daemon_run"):
    """Run or offer a daemon."""

    daemon: DaemonWish


class MoveDaemon(Request, frozen=True, tag="daemon_move"):
    """Move a daemon, wherever it runs."""

    daemon: str
    target: str | None = None
    """By default the nearest node that offers it."""
    source: str | None = None
    timeout_s: float = 60.0


class DaemonHistory(Request, frozen=True, tag="daemon_logs"):
    """Start a stream of what happened to a daemon."""

    daemon: str
    follow: bool = False


class StopDaemon(Request, frozen=True, tag="daemon_stop"):
    """Stop a daemon."""

    daemon: str
    withdraw: bool = False


class Pins(Request, frozen=True, tag="pins"):
    """Return the nodes that it has seen secure."""


class ResetPins(Request, frozen=True, tag="pins_reset"):
    """Remove pins."""

    node: str | None = None
    """Node id or name; by default all of them."""


class ShowPolicy(Request, frozen=True, tag="policy"):
    """Return where the policy in force is."""


class ApplyPolicy(Request, frozen=True, tag="policy_apply"):
    """Apply a policy."""

    path: str | None = None
    """By default the node's own policy file is read again."""
    by: str | None = None
    """Who asks for it, for the audit log; by default the user of the node."""


class RotatePsk(Request, frozen=True, tag="rotate_psk"):
    """Replace the mesh key."""

    path: str | None = None
    """By default the node's own psk_file is read again."""
    by: str | None = None
    """Who asks for it, for the audit log; by default the user of the node."""


class ListRevocations(Request, frozen=True, tag="revocations"):
    """Return what was revoked."""


class AddRevocation(Request, frozen=True, tag="revocations_add"):
    """Put a signed revocation into effect."""

    record: str
    by: str | None = None
    """Who asks for it, for the audit log; by default the user of the node."""


class PrepareIdentity(Request, frozen=True, tag="prepare_identity"):
    """Make the next key of the node, and return the record by which it succeeds the present one."""

    reason: str = REASON
    issuer: str | None = None
    """Public key of the issuer that is to endorse the record."""


class RotateIdentity(Request, frozen=True, tag="rotate_identity"):
    """Continue under another key."""

    record: str | None = None
    """As `prepare_identity` returned it, endorsed by its issuer; by default a key is made now."""
    timeout_s: float = 10.0
    by: str | None = None
    """Who asks for it, for the audit log; by default the user of the node."""


class RotateTokens(Request, frozen=True, tag="rotate_tokens"):
    """Read the token files again."""

    by: str | None = None
    """Who asks for it, for the audit log; by default the user of the node."""


class MakeInvite(Request, frozen=True, tag="invite"):
    """Make an invite."""

    name: str
    tags: tuple[str, ...] = ()
    subnet: str = "global"
    ttl_s: int = InviteSpec(name="x").ttl_s
    valid_s: int = InviteSpec(name="x").valid_s
    approval: bool = False
    by: str | None = None
    """Who asks for it, for the audit log; by default the user of the node."""

    def spec(self) -> InviteSpec:
        """Return what the invite is bound to. Raises ConfigError."""
        return InviteSpec(
            name=self.name,
            tags=self.tags,
            subnet=SubnetId.parse(self.subnet),
            ttl_s=self.ttl_s,
            valid_s=self.valid_s,
            approval=self.approval,
        )


class ListInvites(Request, frozen=True, tag="invites"):
    """Return its invites."""


class ChangeInvite(Request, frozen=True, tag="invite_change"):
    """Approve the newcomer of an invite, or withdraw an invite."""

    change: Literal["approve", "withdraw"]
    invite: str
    by: str | None = None


class KeyOf(Request, frozen=True, tag="key_of"):
    """Return the public key of a node."""

    node: str


class Revoke(Request, frozen=True, tag="revoke"):
    """Reject an issuer's tokens below a generation."""

    issuer: str
    generation: int


_REQUEST = msgspec.json.Decoder(
    Status
    | Peers
    | Roster
    | Counters
    | Channels
    | Ping
    | Connect
    | Publish
    | PublishOnce
    | Subscribe
    | Ask
    | Respond
    | Reply
    | Load
    | Measure
    | Replicas
    | ReplicaChange
    | ReplicaVerify
    | ListDaemons
    | RunDaemon
    | MoveDaemon
    | DaemonHistory
    | StopDaemon
    | Pins
    | ResetPins
    | ShowPolicy
    | ApplyPolicy
    | RotatePsk
    | RotateTokens
    | PrepareIdentity
    | RotateIdentity
    | MakeInvite
    | ListInvites
    | ChangeInvite
    | ListRevocations
    | AddRevocation
    | KeyOf
    | Revoke
)


class Admin:
    """Carries out admin commands on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._replies = Replies(node)

    def serve(self, path: Path) -> LineServer:
        """Return a server for the socket; it is open inside `async with`."""
        problem = f"more than {MAX_CONNECTIONS} clients, or a line of more than {MAX_LINE} bytes; try again later"
        refusal = _refuse(ConfigError("request", problem))
        return LineServer(path, self.answer, refusal=refusal)

    async def answer(self, line: bytes) -> bytes | Stream:
        """Answer one line; an error becomes an answer with `"ok": false`."""
        try:
            return await self._do(_REQUEST.decode(line))
        except UNDECODABLE as error:
            return _refuse(ConfigError("request", f"is not a valid command: {error}"))
        except (MeshError, OSError) as error:
            return _refuse(error)
        except Exception as error:  # a bug costs one answer, not the connection
            _logger.exception("admin request failed")
            return _refuse(error)

    async def _do(self, request: Request) -> bytes | Stream:
        node = self._node
        match request:
            case Status():
                return _accept(status_row(node))
            case Peers():
                return _accept(peer_rows(node))
            case Roster():
                return _accept(_roster(node))
            case Counters():
                return _accept(node.counters)
            case Channels():
                return _accept(channel_rows(node))
            case Ping() | Ask() | Respond() | Reply() | Load() | Measure():
                return await self._do_with_peers(request)
            case Connect():
                node_id = None if request.node_id is None else _node_id(request.node_id)
                peer = await node.connect(
                    request.address,
                    public_key=request.public_key,
                    node_id=node_id,
                    routed=request.routed,
                    profile=request.profile,
                )
                return _accept(peer_row(peer))
            case Publish():
                # Not closed: the channel stays announced, so that prefix subscribers get the next event too.
                publisher = node.publisher(request.channel, reliable=request.reliable)
                payload = _payload(request) if request.path is None else await asyncio.to_thread(_read_event, request)
                return _accept(report_row(await publisher.publish(payload)))
            case PublishOnce():
                rows = await asyncio.to_thread(_read_rows, request.path)
                publisher = node.publisher(request.channel)
                return _accept(await publisher.publish_once(rows, writer=request.writer, batch=request.batch))
            case Subscribe():
                subscription = node.subscribe(
                    request.channel,
                    publisher=None if request.publisher is None else _node_id(request.publisher),
                    queue_group=request.queue_group,
                    when_full=request.when_full,
                    since=request.since,
                )
                await subscription.__aenter__()  # here, so that a refusal is the answer and not part of the stream
                return _events(node, subscription)
            case Replicas() | ReplicaChange() | ReplicaVerify():
                return await self._do_with_replicas(request)
            case ListDaemons() | RunDaemon() | MoveDaemon() | DaemonHistory() | StopDaemon():
                return await self._do_with_daemons(node.daemons, request)
            case Pins() | ResetPins() | Revoke() | ListRevocations() | AddRevocation() | KeyOf():
                return _accept(_do_with_trust(node, request))
            case (
                ShowPolicy()
                | ApplyPolicy()
                | RotatePsk()
                | RotateTokens()
                | PrepareIdentity()
                | RotateIdentity()
                | MakeInvite()
                | ListInvites()
                | ChangeInvite()
            ):
                return _accept(await self._do_with_fleet(request))
        raise AssertionError(request)  # the decoder accepts no others

    async def _do_with_fleet(
        self,
        request: ShowPolicy
        | ApplyPolicy
        | RotatePsk
        | RotateTokens
        | PrepareIdentity
        | RotateIdentity
        | MakeInvite
        | ListInvites
        | ChangeInvite,
    ) -> object:
        node = self._node
        match request:
            case ShowPolicy():
                return policy_row(node)
            case ApplyPolicy():
                return {"changes": await node.apply_policy(request.path, by=request.by)}
            case RotatePsk():
                return {"changes": await node.rotate_psk(request.path, by=request.by)}
            case RotateTokens():
                return {"changes": await node.rotate_tokens(by=request.by)}
            case PrepareIdentity():
                issuer = None if request.issuer is None else _hex(request.issuer, KEY_BYTES, "issuer")
                record = await node.prepare_identity(request.reason, issuer=issuer)
                return {"record": encode_record(record).hex()}
            case RotateIdentity():
                given = None if request.record is None else record_given(request.record)
                changes = await node.rotate_identity(given, timeout_s=request.timeout_s, by=request.by)
                return {"changes": changes, "node_id": f"{node.node_id:016x}", "public_key": node.public_key.hex()}
            case MakeInvite():
                made = await node.invite(request.spec(), by=request.by)
                return {**msgspec.structs.asdict(made.invite), "token": made.token, "address": made.address}
            case ListInvites():
                return node.invites()
            case ChangeInvite():
                verbs = {"approve": node.approve_invite, "withdraw": node.withdraw_invite}
                return await verbs[request.change](request.invite, by=request.by)

    async def _do_with_replicas(self, request: Replicas | ReplicaChange | ReplicaVerify) -> bytes:
        node = self._node
        match request:
            case Replicas():
                return _accept([replica_row(node, status) for status in node.replicas()])
            case ReplicaChange():
                changes = {"add": node.replica_add, "remove": node.replica_remove, "transfer": node.replica_transfer}
                await changes[request.change](request.channel, id_or_name(request.node))
                return _accept(None)
            case ReplicaVerify():
                checked = await node.replica_verify(request.channel, repair=request.repair)
                return _accept([range_row(node, one) for one in checked])

    async def _do_with_peers(self, request: Ping | Ask | Respond | Reply | Load | Measure) -> bytes | Stream:
        node = self._node
        match request:
            case Ping():
                return _accept(await ping_row(node, request.node, request.timeout_s))
            case Ask():
                return _accept(
                    await request_row(node, request.node, request.channel, _payload(request), request.timeout_s)
                )
            case Respond():
                requests = self._replies.requests(request.channel)
                await anext(requests)  # here, so that a refusal is the answer and not part of the stream
                return _requests(requests)
            case Reply():
                if request.problem is None:
                    self._replies.answer(request.request, _payload(request))
                else:
                    self._replies.fail(request.request, request.problem)
                return _accept(None)
            case Load():
                sent = await send_load(
                    node, request.channel, events=request.events, size=request.size, reliable=request.reliable
                )
                return _accept(sent)
            case Measure():
                return _accept(await measure_load(node, request.channel, timeout_s=request.timeout_s))

    async def _do_with_daemons(
        self, daemons: Daemons, request: ListDaemons | RunDaemon | MoveDaemon | DaemonHistory | StopDaemon
    ) -> bytes | Stream:
        who = partial(_who, self._node)
        match request:
            case ListDaemons():
                return _accept([daemon_row(info, who) for info in daemons.list()])
            case RunDaemon(daemon=wish):
                info = await start_wish(daemons, self._node.config.daemons_path, wish)
                return _accept(daemon_row(info, who))
            case MoveDaemon():
                target, source = (None if one is None else id_or_name(one) for one in (request.target, request.source))
                daemon = id_or_name(request.daemon)
                moved = await daemons.move(daemon, target, source=source, timeout_s=request.timeout_s)
                return _accept(move_row(moved, who))
            case DaemonHistory():
                daemon = id_or_name(request.daemon)
                if not daemons.logs(daemon):
                    daemons.get(daemon)  # one that is not known is an error, not an empty stream
                return _lines(lines_of(daemons, daemon, follow=request.follow))
            case StopDaemon():
                end = daemons.withdraw if request.withdraw else daemons.stop
                await end(id_or_name(request.daemon))
                return _accept(None)


def _do_with_trust(node: Node, request: Pins | ResetPins | Revoke | ListRevocations | AddRevocation | KeyOf) -> Any:
    match request:
        case Pins():
            return [{**_who(node, pinned), "public_key": key.hex()} for pinned, key in node.pins.items()]
        case ResetPins():
            return node.reset_pins(None if request.node is None else id_or_name(request.node))
        case Revoke():
            node.revoke_tokens(_hex(request.issuer, 32, "issuer"), _generation(request.generation))
            return None
        case ListRevocations():
            return [revocation_row(record, node.name_of(record.node_id)) for record in node.revocations]
        case AddRevocation():
            record = record_given(request.record)
            new = node.revoke(record, by=request.by)
            return {"new": new, **revocation_row(record, node.name_of(record.node_id))}
        case KeyOf():
            node_id = node.find_node(id_or_name(request.node))
            key = node.key_of(node_id)
            return {**_who(node, node_id), "public_key": None if key is None else key.hex()}


async def _events(node: Node, subscription: Subscription) -> Stream:
    try:
        yield _accept(answers_row(node, subscription))
        async for event in subscription:
            yield _encode({"event": event_row(event)})
    except MeshError as error:
        yield _refuse(error)
    finally:
        await subscription.close()


async def _requests(requests: AsyncIterator[tuple[int, bytes] | None]) -> Stream:
    yield _accept(None)
    async for asked in requests:
        if asked is not None:
            number, payload = asked
            yield _encode({"request": {"request": number, **payload_row(payload)}})


async def _lines(lines: AsyncIterator[DaemonLine]) -> Stream:
    yield _accept(None)
    async for line in lines:
        yield _encode({"line": line_row(line)})
    yield _accept(None)


def _read_rows(path: str) -> Any:
    import pyarrow as pa

    try:
        rows = pa.ipc.open_file(pa.memory_map(path)).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError("path", f"{path} cannot be read as an Arrow file: {error}") from None
    if "payload" not in rows.column_names:
        raise ConfigError("path", f"{path} has no column payload; it has {', '.join(rows.column_names)}")
    return rows


def event_row(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object."""
    row: dict[str, Any] = {"channel": event.channel, "publisher": f"{event.publisher:016x}", "pub_seq": event.pub_seq}
    return {**row, **payload_row(event.payload)}


def channel_rows(node: Node) -> list[dict[str, Any]]:
    """Return the channels that a node knows as JSON objects."""
    return [
        {**msgspec.structs.asdict(info), "publishers": [_who(node, one) for one in info.publishers]}
        for info in node.channels()
    ]


async def ping_row(node: Node, peer: str | None, timeout_s: float) -> dict[str, Any]:
    """Ping a peer and return the round trip as a JSON object."""
    node_id = peer_meant(node, peer)
    took_s = await node.ping(node_id, timeout_s=timeout_s)
    return {**_who(node, node_id), "rtt_ms": round(took_s * 1000, 3)}


async def request_row(node: Node, peer: str | None, channel: str, payload: bytes, timeout_s: float) -> dict[str, Any]:
    """Send a request to a peer and return its reply as a JSON object."""
    node_id, began = peer_meant(node, peer), time.monotonic()
    reply = await node.request(node_id, channel, payload, timeout_s=timeout_s)
    took_ms = round((time.monotonic() - began) * 1000, 3)
    return {**_who(node, node_id), "channel": channel, **payload_row(reply), "took_ms": took_ms}


def peer_meant(node: Node, peer: str | None) -> int:
    """Return the peer that a user means by its name or id, or the only one. Raises PeerError and ConfigError."""
    if peer is not None:
        return node.find_node(id_or_name(peer))
    ids = [one.node_id for one in node.peers]
    if len(ids) != 1:
        names = ", ".join(node.name_of(one) or f"{one:016x}" for one in ids[:MOST_NAMED])
        hint = f"choose from {names}" if ids else "this node has no peers; connect to one first"
        raise ConfigError("node", f"required, because this node has {len(ids)} peers; {hint}")
    return ids[0]


def answers_row(node: Node, subscription: Subscription) -> dict[str, Any]:
    """Return the publishers that accepted and refused a subscription as a JSON object."""
    return {
        "publishers": [_who(node, node_id) for node_id in subscription.publishers],
        "refused": [
            {**_who(node, refusal.node_id), "channel": refusal.channel, "reason": refusal.reason}
            for refusal in subscription.refused
        ],
    }


def report_row(report: PublishReport) -> dict[str, Any]:
    """Return the outcome of a publish as a JSON object."""
    return {
        "attempted": report.attempted,
        "delivered": report.delivered,
        "errors": [
            {"node_id": f"{leg.node_id:016x}", "code": leg.code, "problem": leg.message} for leg in report.errors
        ],
        "filtered": [{"node_id": f"{node_id:016x}", "why": str(why)} for node_id, why in report.filtered],
        "log_seq": report.log_seq,
    }


def status_row(node: Node) -> dict[str, Any]:
    """Return the identity and address of a node as a JSON object."""
    return {
        "node_id": f"{node.node_id:016x}",
        "name": node.config.name,
        "public_key": node.public_key.hex(),
        "noise_public_key": node.noise_public_key.hex(),
        "address": node.address,
        "subnet": str(node.config.subnet),
        "certified_until": node.certificate and _time(node.certificate.not_after),
        "join_address": node.join_address,
        "nat": str(node.mesh.nat.nat),
        "reflex": node.mesh.nat.reflex and str(node.mesh.nat.reflex),
        "peers": len(node.peers),
        "revoked": [record.what.word for record in node.revocations if record.node_id == node.node_id],
        "revocations": len(node.revocations),
        "revocations_saved": node.revocations_saved,
        "uptime_s": round(node.uptime_s, 1),
    }


def peer_rows(node: Node) -> list[dict[str, Any]]:
    """Return the peers of a node, and those that it dials, as JSON objects."""
    dials = {dial.node_id: dial for dial in node.dialing if dial.state is not DialState.CONNECTED}
    lost = _lost(node)
    # A failed peer still has a session while it is dialed.
    rows = [
        {**peer_row(peer), **lost.get(peer.node_id, {}), **_tries(dials.pop(peer.node_id, None))} for peer in node.peers
    ]
    for node_id, dial in dials.items():
        dialed = {**_who(node, node_id), "address": dial.address, "health": str(dial.state)}
        rows.append({**dialed, **lost.get(node_id, {}), **_tries(dial)})
    return rows


def _lost(node: Node) -> dict[int, dict[str, list[str]]]:
    """Return what was revoked of nodes, by their id; those that have all their rights are not there."""
    lost: dict[int, dict[str, list[str]]] = {}
    for record in node.revocations:
        lost.setdefault(record.node_id, {"revoked": []})["revoked"].append(record.what.word)
    return lost


def _tries(dial: DialInfo | None) -> dict[str, Any]:
    if dial is None:
        return {}
    return {
        "since": _time(dial.since_ns // 1_000_000_000),
        "tries": dial.tries,
        "next_try_s": None if dial.next_try_s is None else round(dial.next_try_s, 1),
        "last_error": dial.last_error,
    }


def _time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def peer_row(peer: PeerInfo) -> dict[str, Any]:
    """Return the state of a peer as a JSON object."""
    host, port = peer.address[:2]  # type: ignore[index]
    return {
        "node_id": f"{peer.node_id:016x}",
        "name": peer.name,
        "address": str(Endpoint(host, port)),
        "path": "relayed" if peer.relayed else "direct",
        "nat": str(peer.nat),
        "health": str(peer.health),
        "subnet": str(peer.subnet),
        "profile": peer.profile,
        "secure": peer.secure,
        "dialect": peer.dialect,
        "tags": list(peer.tags),
    }


def replica_row(node: Node, status: ReplicaStatus) -> dict[str, Any]:
    """Return the state of a replicated channel as a JSON object."""
    return {
        "channel": status.channel,
        "role": status.role,
        "leader": None if status.leader is None else _who(node, status.leader),
        "epoch": status.epoch,
        "tail": status.tail,
        "committed": status.committed,
        "lag_s": status.lag_s,
        "acks": str(status.acks),
        "members": [
            {**_who(node, one.node_id), "connected": one.connected, "stored": one.stored, "lag": one.lag}
            for one in status.members
        ],
        "waiting": status.waiting,
    }


def range_row(node: Node, checked: ReplicaRange) -> dict[str, Any]:
    """Return the comparison of one range as a JSON object."""
    groups = {"equal": checked.equal, "wrong": checked.wrong, "unread": checked.unread}
    return {
        "first": checked.first,
        "end": checked.end,
        **{group: [_who(node, node_id) for node_id in nodes] for group, nodes in groups.items()},
    }


def policy_row(node: Node) -> dict[str, Any]:
    """Return where the policy of a node is as a JSON object."""
    file = node.config.policy_file
    return {"policy_file": file and str(file), "sha256": node.policy_hash, "version": node.policy_version}


def id_or_name(text: str) -> int | str:
    """Return a node or a daemon as it was given: an id of 16 hex digits, or a name."""
    return int(text, 16) if _ID.fullmatch(text) else text


def _roster(node: Node) -> list[dict[str, Any]]:
    roster = node.roster
    rows = []
    for channel in roster:
        groups = {member: name for name, members in roster.groups(channel).items() for member in members}
        rows += [
            {"channel": channel, **_who(node, member), "queue_group": groups.get(member)}
            for member in roster.members(channel)
        ]
    return rows


def _who(node: Node, node_id: int) -> dict[str, Any]:
    return {"node_id": f"{node_id:016x}", "name": node.name_of(node_id)}


def _payload(request: Publish | Ask | Reply) -> bytes:
    if (request.payload is None) == (request.payload_base64 is None):
        raise ConfigError("payload", "give exactly one of payload, payload_base64 and path")
    if request.payload is not None:
        return request.payload.encode()
    try:
        return base64.b64decode(request.payload_base64 or "", validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("payload_base64", "is not valid base64") from None


def _read_event(request: Publish) -> bytes:
    """Read the file of an event; at most one byte more than an event can have, so that it is refused for its size."""
    if request.payload is not None or request.payload_base64 is not None:
        raise ConfigError("payload", "give exactly one of payload, payload_base64 and path")
    try:
        with Path(request.path or "").open("rb") as file:
            return file.read(MAX_LARGE_EVENT + 1)
    except OSError as error:
        raise ConfigError("path", f"{request.path} cannot be read: {error.strerror}") from None


def _hex(text: str, size: int, what: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise ConfigError(what, f"must be {2 * size} hex digits, got {text!r}; copy it again, in full")
    return raw


def _node_id(text: str) -> int:
    return int.from_bytes(_hex(text, 8, "node_id"))


def _generation(number: int) -> int:
    if not 0 <= number <= MAX_U32:
        raise ConfigError("generation", f"must be from 0 to {MAX_U32}, got {number}")
    return number


def _accept(result: object) -> bytes:
    return _encode({"ok": True, "result": result})


def _refuse(error: Exception) -> bytes:
    code = error.code if isinstance(error, MeshError) else "system"
    fault = getattr(error, "fault", None)
    return _encode({"ok": False, "code": code, "fault": fault and str(fault), "problem": str(error)})


def _encode(answer: dict[str, Any]) -> bytes:
    return msgspec.json.encode(answer, enc_hook=str) + b"\n"
