"""Service table: the services that make up the protocol of one node, one row each.

The order of the rows is the order in which hooks run, including `tick`: sessions first, then routes, streams, the
directory, NAT traversal, negotiation, and the services about channels. A factory can use the services of earlier rows.
To add a subprotocol, write its messages (wire/messages), its service (session/service.py) and a row here.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.carriage.carrier import carrying
from meshbus.engine.channels.admission import Admission
from meshbus.engine.channels.history_client import Replays
from meshbus.engine.channels.history_server import History
from meshbus.engine.channels.identityproof import IdentityProofs
from meshbus.engine.channels.interest_client import Following
from meshbus.engine.channels.interest_server import Interests
from meshbus.engine.channels.membership import Membership
from meshbus.engine.channels.publication import Publications
from meshbus.engine.channels.publish import Planner
from meshbus.engine.channels.request import Requests
from meshbus.engine.channels.rotation import Rotation
from meshbus.engine.directory.announce import Announcer
from meshbus.engine.directory.chains import Chains
from meshbus.engine.directory.directory import Directory
from meshbus.engine.directory.fleetpolicy import FleetPolicy
from meshbus.engine.directory.revoking import Revoking
from meshbus.engine.nat.reflex import Reflex
from meshbus.engine.nat.rendezvous import Rendezvous
from meshbus.engine.nat.traversal import Traversal
from meshbus.engine.replicas.appending import Appending
from meshbus.engine.replicas.replication import Replication
from meshbus.engine.replicas.sets import ReplicaSets
from meshbus.engine.routes.mesh import Mesh
from meshbus.engine.routes.relay import HandshakeRelay
from meshbus.engine.routes.withdrawal import Withdrawals
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.keywindow import KeyWindow
from meshbus.engine.session.liveness import Liveness
from meshbus.engine.session.negotiate import Negotiator
from meshbus.engine.session.presence import Presence
from meshbus.engine.session.secure import Secure
from meshbus.engine.session.service import Context, Row, Service
from meshbus.engine.streams.delivery import Delivery
from meshbus.engine.streams.large import Large
from meshbus.engine.streams.streamrepair import AcknowledgedRanges, StreamNacks, StreamResets
from meshbus.engine.streams.streams import Streams
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.revocation import VERSION as REVOCATION_VERSION


def _optional(factory: Callable[[Context], Service], subprotocol_id: int, name: str) -> Row:
    """Return the row of a subprotocol that only some meshbus nodes have, on reliable streams."""
    return Row(
        factory,
        subprotocol_id,
        name,
        profile=True,
        optional=True,
        reliable=True,
        needs=Subprotocol.RELIABLE,
        cost_us=20,
    )


def _carried(subprotocol_id: int, name: str) -> Row:
    """Return the row of a subprotocol of daemons that only meshbus nodes use."""
    return _optional(carrying(subprotocol_id), subprotocol_id, name)


def _mesh(context: Context) -> Mesh:
    return Mesh(context, context.services[Handshakes])


def _withdrawals(context: Context) -> Withdrawals:
    return Withdrawals(context, context.services[Mesh].table)


def _relay(context: Context) -> HandshakeRelay:
    return HandshakeRelay(context, context.services[Mesh].table, context.services[Handshakes])


def _large(context: Context) -> Large:
    return Large(context, context.services[Streams])


def _delivery(context: Context) -> Delivery:
    return Delivery(context, context.services[Streams], context.services[Large])


def _nacks(context: Context) -> StreamNacks:
    return StreamNacks(context, context.services[Streams])


def _resets(context: Context) -> StreamResets:
    return StreamResets(context, context.services[Streams])


def _ranges(context: Context) -> AcknowledgedRanges:
    return AcknowledgedRanges(context, context.services[Streams])


def _directory(context: Context) -> Directory:
    return Directory(context, context.services[Announcer], context.services[Mesh].next_hop)


def _chains(context: Context) -> Chains:
    return Chains(context, context.services[Announcer], context.services[Mesh].graph.latency_to)


def _traversal(context: Context) -> Traversal:
    services = context.services
    return Traversal(context, services[Mesh], services[Reflex], services[Rendezvous])


def _membership(context: Context) -> Membership:
    services = context.services
    return Membership(context, services[Admission], services[Delivery].joined, services[IdentityProofs])


def _following(context: Context) -> Following:
    return Following(context, context.services[Delivery].joined)


def _interests(context: Context) -> Interests:
    return Interests(context, context.services[Admission], context.services[Following])


def _requests(context: Context) -> Requests:
    services = context.services
    return Requests(context, services[Streams].send_reliable, services[Admission].may_request, services[Large].limit_of)


def _replays(context: Context) -> Replays:
    return Replays(context, context.services[Streams])


def _history(context: Context) -> History:
    services = context.services
    return History(context, services[Admission], services[Streams], services[Replays])


def _publications(context: Context) -> Publications:
    planner = Planner(context.services[Admission], context.counters)
    return Publications(context, planner, context.services[Streams])


def _appending(context: Context) -> Appending:
    return Appending(context, context.services[Streams], context.services[Admission].may_publish)


# Service, subprotocol id, name. `credit=False`: a 0.23 node handles these ids without grants (transport.md §17).
# `cost_us` is as bench/bench_hostile.py measures it, rounded up.
SERVICES: tuple[Row, ...] = (
    Row(Handshakes),
    Row(KeyWindow),
    Row(Liveness),
    Row(_mesh),
    Row(_withdrawals, Subprotocol.ROUTE_WITHDRAWAL, "route-withdrawal", later=True, credit=False, cost_us=15),
    Row(_relay, Subprotocol.HANDSHAKE_RELAY, "handshake-relay", profile=True, cost_us=25),
    Row(Streams, Subprotocol.STREAM_WINDOW, "stream-window", credit=False, cost_us=3),
    Row(_large, Subprotocol.LARGE, "large", profile=True, needs=Subprotocol.RELIABLE, cost_us=20),
    Row(_nacks, Subprotocol.STREAM_NACK, "stream-nack", later=True, credit=False, cost_us=40),
    Row(_resets, Subprotocol.STREAM_RESET, "stream-reset", later=True, credit=False, cost_us=15),
    Row(_ranges, Subprotocol.STREAM_RANGES, "stream-ranges", later=True, credit=False, cost_us=15),
    Row(_delivery, Subprotocol.RELIABLE, "reliable", profile=True, cost_us=16),
    Row(Announcer),
    Row(_directory, Subprotocol.CAPABILITY, "capability", credit=False, cost_us=15),
    Row(_chains),
    Row(Reflex, Subprotocol.REFLEX, "reflex", credit=False, cost_us=60),
    Row(Rendezvous, Subprotocol.RENDEZVOUS, "rendezvous", credit=False, cost_us=20),
    Row(_traversal),
    Row(Negotiator, Subprotocol.NEGOTIATION, "negotiation", cost_us=160),
    # Before everything that sends data to a new peer.
    Row(Secure, Subprotocol.SECURE, "secure", profile=True, cost_us=400),
    Row(Admission),
    Row(IdentityProofs, Subprotocol.IDENTITY_PROOF, "identity-proof", later=True, credit=False, cost_us=250),
    Row(_membership, Subprotocol.MEMBERSHIP, "membership", credit=False, cost_us=40),
    Row(_following),
    Row(_interests, Subprotocol.INTEREST, "interest", profile=True, cost_us=15),
    # Replies and chunks cost little; accepting a request or a read costs more, which their services charge.
    Row(
        _requests,
        Subprotocol.REQUEST,
        "request",
        profile=True,
        reliable=True,
        large=True,
        needs=Subprotocol.RELIABLE,
        cost_us=10,
    ),
    Row(_replays),
    Row(_history, Subprotocol.HISTORY, "history", profile=True, reliable=True, needs=Subprotocol.RELIABLE, cost_us=6),
    Row(_publications),
    Row(Replication, Subprotocol.REDEX, "redex", credit=False),
    Row(ReplicaSets, Subprotocol.LEADERSHIP, "leadership", profile=True),
    Row(_appending, Subprotocol.APPEND, "append", profile=True, reliable=True, needs=Subprotocol.RELIABLE),
    # Handled above the engine, where daemons can run. Decoding and answering costs more than carrying.
    Row(carrying(Subprotocol.MIGRATION), Subprotocol.MIGRATION, "migration", optional=True, credit=False, cost_us=20),
    _carried(Subprotocol.CAUSAL, "causal"),
    _carried(Subprotocol.SNAPSHOT, "snapshot"),
    _carried(Subprotocol.CONTINUITY, "continuity"),
    _carried(Subprotocol.FORK, "fork"),
    _carried(Subprotocol.PROOF, "proof"),
    _carried(Subprotocol.PARTITION, "partition"),
    _carried(Subprotocol.RECONCILE, "reconcile"),
    _carried(Subprotocol.GROUPS, "groups"),
    # Only where issuers of the fleet are configured. Signatures and sending are charged by the service.
    _optional(FleetPolicy, Subprotocol.POLICY, "policy"),
    # Between nodes that can be succeeded by another key. No tag announces these two: what plain peers see of a node stays the same.
    _optional(Revoking, Subprotocol.REVOCATION, "revocation")._replace(unannounced=True, version=REVOCATION_VERSION),
    _optional(Rotation, Subprotocol.ROTATION, "rotation")._replace(unannounced=True),
    # Last: a goodbye must not overtake what the others still have to say.
    Row(Presence, Subprotocol.PRESENCE, "presence", profile=True, cost_us=25),
)
