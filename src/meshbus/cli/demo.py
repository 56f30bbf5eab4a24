"""`make demo`: the walk of one event, with its real bytes, in the terminal.

A lidar in fleet 3.7 publishes one event. It is named, framed, sealed, judged by a gateway that cannot read it, and
opened by the other end. Keys are fresh on every run; nothing leaves this process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import numpy as np

from meshbus.errors import RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.columns import read_headers
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.guard import AuthGuard
from meshbus.policy.verdict import DropReason
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES, Flags
from meshbus.wire.frames import pack_frames, unpack_frames
from meshbus.wire.header import HEADER_DTYPE, Header
from meshbus.wire.keys import Role, SessionKeys, derive_keys
from meshbus.wire.messages.token import PermissionToken, Scope, encode_token
from meshbus.wire.noise import Initiator, Responder, derive_public_key, prologue
from meshbus.wire.route import RouteHeader, forwarded, pack_route, unpack_route
from meshbus.wire.seal import Opener, Sealer

CHANNEL = ChannelName("sensors/lidar/front")
EVENT = b'{"range_m": 12.4, "beam": 7}'
LOCAL = SubnetId.parse("3.7")
DESTINATIONS = {"3": "its region", "3.8": "a sibling fleet", "9": "a subnet nobody registered"}
BATCH = 100_000


def main() -> None:
    """Print the walk."""
    for line in walk():
        print(line)


def walk() -> Iterator[str]:
    """Give the lines of the walk."""
    lidar, planner = Identity.generate(os.urandom), Identity.generate(os.urandom)
    yield _title("1  name", "a channel is a name; packets carry its hashes")
    yield _field("channel", CHANNEL)
    yield _field("canonical hash", f"{CHANNEL.hash:016x}   authorizes")
    yield _field("wire hash", f"{CHANNEL.wire_hash:04x}               fits the header, filters only")
    yield _field("stream", f"{CHANNEL.stream_id:016x}   the canonical hash with bit 48 set")

    yield _title("2  identity and permission", "Ed25519 keys give node ids; a token lets the planner subscribe")
    yield _field("lidar", f"node {lidar.node_id:016x}  origin {lidar.origin_hash:016x}  subnet {LOCAL}")
    yield _field("planner", f"node {planner.node_id:016x}  origin {planner.origin_hash:016x}  subnet 3")
    now = time.time_ns() / 1e9
    token = PermissionToken.issue(
        lidar, planner.entity_id, Scope.SUBSCRIBE, CHANNEL, ttl_s=3600, now=now, entropy=os.urandom
    )
    token.verify(now)
    guard = AuthGuard()
    guard.authorize(planner.node_id, CHANNEL.hash)
    yield _field("token", f"{len(encode_token(token))} bytes, signature good, one hour")
    yield _field("auth guard", f"planner {guard.check_fast(planner.node_id, CHANNEL.hash).name}, a stranger "
                               f"{guard.check_fast(1, CHANNEL.hash).name}")  # fmt: skip

    yield _title("3  handshake", "Noise NKpsk0, two messages")
    lidar_keys, planner_keys, messages = _shake_hands(lidar, planner)
    yield from (_field(f"message {n}", f"{len(m)} bytes  {m[:24].hex()}…") for n, m in enumerate(messages, 1))
    yield _field(
        "session",
        f"{lidar_keys.session_id:016x}, the same at both ends: {lidar_keys.session_id == planner_keys.session_id}",
    )

    yield _title("4  frame, header, seal", "many events fit one packet; this one carries one")
    payload = pack_frames([EVENT])
    header = Header(
        flags=Flags.RELIABLE,
        hop_ttl=8,
        channel_hash=CHANNEL.wire_hash,
        stream_id=CHANNEL.stream_id,
        origin_hash=lidar.origin_hash,
        subnet_id=LOCAL,
        event_count=1,
    )
    packet = Sealer(lidar_keys).seal(header, payload)
    yield _field("event", EVENT.decode())
    yield _field("frame", payload[:20].hex() + "…")
    yield from _show_header(packet)
    yield _field("sealed", f"{packet[HEADER_BYTES:][:24].hex()}…  {len(packet) - HEADER_BYTES} bytes with the tag")

    yield _title("5  gateway", "header columns in, verdicts out; nothing is decrypted")
    gateway = _gateway()
    yield _field("policy", f"{CHANNEL} is {Visibility.PARENT_VISIBLE}: upwards only")
    yield from _judge(gateway, packet)

    yield _title("6  forward", "the relay counts hops and copies every other byte")
    route = RouteHeader(src_id=lidar.node_id & 0xFFFFFFFF, dest_id=planner.node_id)
    relayed, arrived = _relay(pack_route(route) + packet)
    yield _field("before", pack_route(route).hex())
    yield _field("after", relayed[:ROUTE_BYTES].hex() + "   ttl 8 → 7, hops 0 → 1")
    yield _field("inner packet", f"hop_count {packet[6]} → {arrived[6]}, every other byte as it was: "
                                 f"{arrived[:6] + arrived[7:] == packet[:6] + packet[7:]}")  # fmt: skip

    yield _title("7  open", "the hop count is outside the authenticated bytes; all else is inside")
    opener = Opener(planner_keys)
    opened, plaintext = opener.open(arrived)
    events = unpack_frames(plaintext, opened.event_count)
    yield _field("event", bytes(events[0]).decode())
    yield _field("again", _refusal(opener, arrived))
    yield _field("one bit flipped", _refusal(opener, arrived[:60] + bytes([arrived[60] ^ 1]) + arrived[61:]))

    yield _title("8  in batches", "the same verdicts, as columns")
    yield from _judge_many(gateway, packet)


def _shake_hands(initiator: Identity, responder: Identity) -> tuple[SessionKeys, SessionKeys, tuple[bytes, bytes]]:
    psk, static = os.urandom(32), os.urandom(32)
    bound = prologue(initiator.node_id, responder.node_id)
    mine = Initiator(
        psk=psk,
        prologue=bound,
        responder_public_key=derive_public_key(static),
        ephemeral_private_key=os.urandom(32),
    )
    theirs = Responder(psk=psk, prologue=bound, static_private_key=static)
    first = mine.write()
    theirs.read(first)
    second = theirs.write(os.urandom(32))
    mine.read(second)
    return (
        derive_keys(mine.handshake_hash, Role.INITIATOR),
        derive_keys(theirs.handshake_hash, Role.RESPONDER),
        (first, second),
    )


def _gateway() -> SubnetGateway:
    channels = ChannelConfigRegistry()
    channels.insert(ChannelConfig(channel=CHANNEL, visibility=Visibility.PARENT_VISIBLE))
    return SubnetGateway(LOCAL, [SubnetId.parse("3"), SubnetId.parse("3.8")], channels=channels)


def _judge(gateway: SubnetGateway, packet: bytes) -> Iterator[str]:
    one = np.array([0], np.int64), np.array([len(packet)], np.int64)
    headers = read_headers(np.frombuffer(packet, np.uint8), *one)
    for text, what in DESTINATIONS.items():
        (code,) = gateway.decide_batch(headers, [SubnetId.parse(text)]).tolist()
        verdict = "forward" if code == 0 else f"drop: {DropReason(code).name}"
        yield _field(f"to {text}", f"{verdict:24} ({what})")


def _relay(datagram: bytes) -> tuple[bytes, bytes]:
    """Do what a forwarder does; gives the datagram as it leaves, and the inner packet."""
    route = forwarded(unpack_route(datagram))
    assert route is not None  # the ttl was 8
    inner = bytearray(datagram[ROUTE_BYTES:])
    inner[6] += 1
    return pack_route(route) + bytes(inner), bytes(inner)


def _refusal(opener: Opener, packet: bytes) -> str:
    try:
        opener.open(packet)
    except RemoteProtocolError as error:
        return f"refused, {error.code}: {error}"
    return "accepted"


def _judge_many(gateway: SubnetGateway, packet: bytes) -> Iterator[str]:
    headers = np.repeat(np.frombuffer(packet, HEADER_DTYPE, 1), BATCH)
    dest = np.resize(np.array([SubnetId.parse(text) for text in DESTINATIONS], np.uint32), BATCH)
    gateway.decide_batch(headers[:1], dest[:1])  # compiles, or loads from the cache
    begin = time.perf_counter()
    verdicts = gateway.decide_batch(headers, dest)
    took = time.perf_counter() - begin
    yield _field(f"{BATCH} headers", f"{took * 1e3:.1f} ms, {took / BATCH * 1e9:.0f} ns each")
    for code, count in zip(*np.unique(verdicts, return_counts=True), strict=True):
        yield _field("forward" if code == 0 else DropReason(code).name, str(count))
    yield ""


def _show_header(packet: bytes) -> Iterator[str]:
    """Show the header field by field, each beside its bytes."""
    row = np.frombuffer(packet, HEADER_DTYPE, 1)[0]
    yield _field("header", f"{HEADER_BYTES} bytes")
    for name in ("magic", "flags", "hop_ttl", "channel_hash", "counter", "session_id", "stream_id", "origin_hash",
                 "subnet_id", "payload_len", "event_count"):  # fmt: skip
        kind, offset = HEADER_DTYPE.fields[name][:2]  # type: ignore[index]
        value = str(SubnetId(int(row[name]))) if name == "subnet_id" else f"{int(row[name]):#x}"
        yield f"    {offset:3}  {packet[offset : offset + kind.itemsize].hex():16}  {name} = {value}"


def _title(head: str, tail: str) -> str:
    bold, dim, off = ("\033[1m", "\033[2m", "\033[0m") if _colorful() else ("", "", "")
    return f"\n{bold}{head}{off}  {dim}{tail}{off}"


def _field(name: str, value: str) -> str:
    return f"  {name:16} {value}"


def _colorful() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


if __name__ == "__main__":
    main()
