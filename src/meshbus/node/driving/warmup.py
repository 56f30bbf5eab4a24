"""Work that a process does once before its first packet.

`keep_memory` makes the memory allocator keep what batches free. `warm` passes two packets through all kernels of the
packet path, for programs that want the full rate from the first packet on, such as benchmarks: by itself a node loads a
kernel beside its loop when it first needs it (meshbus/jit.py). Nothing happens at import.
"""

from __future__ import annotations

import numpy as np

from meshbus.engine.base.packets import PacketBatch
from meshbus.engine.base.runscan import scan
from meshbus.engine.session.link import Link, equalize
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.gateway import SubnetGateway
from meshbus.wire.constants import ROUTE_BYTES
from meshbus.wire.frames import columns_of, decode_frames, encode_frames
from meshbus.wire.header import Header, pack_header
from meshbus.wire.headerbatch import read_headers
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.large import encode_parts, join_parts
from meshbus.wire.route import RouteHeader, pack_route
from meshbus.wire.routebatch import alike_run, count_hop, read_routes, routed_stretch

_KEPT_BYTES = 16 << 20
"""More than all batches of one loop iteration together."""


def warm() -> None:
    """Load every kernel of the packet path; fast if they are loaded already. Not on a loop: there it would not wait."""
    keep_memory()
    now, secret = 0.0, bytes(32)
    sender = Link(derive_keys(secret, Role.INITIATOR), Role.INITIATOR, None, now)
    receiver = Link(derive_keys(secret, Role.RESPONDER), Role.RESPONDER, None, now)
    offsets, fixed = columns_of([bytes(60), bytes(64), bytes(62)])
    for data in (fixed, fixed.copy()):  # numba compiles a kernel once for read-only and once for writable arrays
        packed = equalize(encode_frames(offsets, data, max_payload=80))
        trains = sender.seal_batch(Header(), packed, 0)
        batch = PacketBatch.of([(None, datagram) for train in trains for datagram in train.datagrams()])
        read_headers(batch.data, batch.starts, batch.lengths)
        run = scan(batch.data, batch.starts, batch.lengths)
        assert run is not None
        plain = receiver.open_run(batch.data, batch.starts, run).plain
        decode_frames(plain, run.places, run.lengths, run.counts)
    parts = encode_parts(fixed, 64, 0, 3, 0)
    join_parts(parts.data, parts.bounds[:-1], np.diff(parts.bounds), np.empty_like(fixed), 0)
    _warm_forwarding()


def _warm_forwarding() -> None:
    """Load the kernels that check and rewrite forwarded packets."""
    packet = pack_route(RouteHeader(src_id=0, dest_id=0)) + pack_header(Header())
    batch = PacketBatch.of([(None, packet), (None, packet)])
    data, starts, lengths = batch.data, batch.starts, batch.lengths
    assert routed_stretch(data, starts, lengths, 0, 2, 1) == alike_run(data, starts, lengths, 0, 2) == 2
    routes = read_routes(data, starts)
    headers = read_headers(data, starts + ROUTE_BYTES, lengths - ROUTE_BYTES)
    subnets, ttl = np.zeros(2, np.uint32), np.ascontiguousarray(routes["ttl"])
    gateway = SubnetGateway(SubnetId.GLOBAL, channels=ChannelConfigRegistry())
    gateway.decide_batch(headers, subnets, source=subnets, ttl=ttl)
    count_hop(data, starts, 0, 2)


def keep_memory() -> None:
    """Make the memory allocator keep freed batches in this process.

    glibc returns large blocks to the kernel at once, and gets them back zeroed page by page, which costs more than
    decrypting their content. Once a larger block was freed, it keeps blocks of that size. Other allocators are not
    affected.
    """
    np.empty(_KEPT_BYTES, np.uint8)
