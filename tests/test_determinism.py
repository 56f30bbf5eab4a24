"""Randomness and time are arguments: the same seed gives the same bytes, another seed gives others."""

import random

from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.wire.frames import pack_frames
from meshbus.wire.handshake import encode_handshake
from meshbus.wire.header import Header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.capability import Announcement, encode_announcement
from meshbus.wire.messages.token import PermissionToken, Scope, encode_token
from meshbus.wire.noise import Initiator, Responder, derive_public_key, prologue
from meshbus.wire.seal import Sealer


def transcript(seed: int) -> list[bytes]:
    """Everything two nodes would put on the wire, from identities to a sealed event."""
    entropy = random.Random(seed).randbytes
    lidar, planner = Identity.generate(entropy), Identity.generate(entropy)
    psk, static = entropy(32), entropy(32)
    bound = prologue(lidar.node_id, planner.node_id)
    initiator = Initiator(
        psk=psk,
        prologue=bound,
        responder_public_key=derive_public_key(static),
        ephemeral_private_key=entropy(32),
    )
    responder = Responder(psk=psk, prologue=bound, static_private_key=static)
    first = initiator.write()
    responder.read(first)
    second = responder.write(entropy(32))
    initiator.read(second)
    channel = ChannelName("sensors/lidar")
    token = PermissionToken.issue(
        lidar, planner.entity_id, Scope.SUBSCRIBE, channel, ttl_s=60, now=1000.0, entropy=entropy
    )
    announcement = Announcement(
        node_id=lidar.node_id, entity_id=lidar.entity_id, version=1, timestamp_ns=10**12, ttl_secs=300, tags=("gpu",)
    ).sign(lidar)
    sealer = Sealer(derive_keys(initiator.handshake_hash, Role.INITIATOR))
    sealed = sealer.seal(Header(stream_id=channel.stream_id, event_count=1), pack_frames([b"event"]))
    return [
        lidar.entity_id,
        encode_handshake(first),
        encode_handshake(second),
        encode_token(token),
        encode_announcement(announcement),
        sealed,
        sealer.heartbeat(),
    ]


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert transcript(7) == transcript(7)


def test_another_seed_gives_other_bytes() -> None:
    assert not set(transcript(7)) & set(transcript(8))
