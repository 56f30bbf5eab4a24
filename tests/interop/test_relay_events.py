"""Events across relays: a real node between two of ours, and one of ours in front of a real node."""

import asyncio

from meshbus.engine.base.packets import Output
from meshbus.engine.session.negotiate import Profile
from meshbus.wire.constants import MAX_EVENT, Subprotocol
from tests.interop.lab import Lab, eventually
from tests.interop.relaying import OUR_TIMES, THEIR_TIMES, find, meet_around, meet_behind, publish_across, send_to_it
from tests.interop.tap import Tap

ROUTE_BYTES = 18


async def test_events_go_both_ways_through_a_real_relay(lab: Lab) -> None:
    relay, (left, right), taps = await meet_around(lab)
    events = [f"{number} {'x' * 300}".encode() for number in range(500)]
    for publisher, subscriber in ((left, right), (right, left)):
        await publish_across(publisher, subscriber, events)
    assert {peer.node_id for peer in left.peers} == {relay.node_id, right.node_id}
    # The real relay passed on everything as it came, one hop further.
    sent = {datagram[ROUTE_BYTES:]: datagram[2:4] for outgoing, datagram in taps[0].routed if outgoing}
    came = {datagram[ROUTE_BYTES:]: datagram[2:4] for outgoing, datagram in taps[1].routed if not outgoing}
    assert len(came) > 20
    assert set(came) <= set(sent)
    assert {(sent[inner], came[inner]) for inner in came} <= {(b"\x10\x00", b"\x0f\x01"), (b"\x08\x00", b"\x07\x01")}


async def test_full_packets_fit_through_a_real_relay(lab: Lab) -> None:
    _, (left, right), _ = await meet_around(lab)
    await publish_across(left, right, [bytes([number]) * (MAX_EVENT - ROUTE_BYTES) for number in range(20)])


async def test_events_through_our_relay_reach_a_real_node(lab: Lab) -> None:
    """The binding cannot send through a relay; it can receive."""
    near, relay, far, tap = await meet_behind(lab)
    await send_to_it(near, far, [f"event {number}".encode() for number in range(300)])
    routed = [seen for seen in tap.seen if seen.routed and seen.outgoing and seen.dest_id == far.node_id]
    assert {(seen.ttl, seen.hop_count) for seen in routed} == {(15, 1), (7, 1)}
    assert relay.counters["transit"]["forwarded"] >= len(routed)


async def test_unknown_subprotocols_pass_our_relay_byte_for_byte(lab: Lab) -> None:
    far = lab.peer(permissive_channels=True, **THEIR_TIMES)
    near, relay = await lab.node(profile=False, **OUR_TIMES), await lab.node(**OUR_TIMES)
    out = await lab.join(relay, far)
    before = lab.tap(near, relay.address)
    await near.connect(before.peer_address, public_key=relay.public_key)
    await find(near, far.node_id)
    await near.connect(node_id=far.node_id, public_key=far.public_key, profile=Profile.PLAIN)
    engine, driver = near.live.engine, near.live.driver
    out_of_engine = Output()
    for subprotocol_id in (0x1234, 0x2468, 0xF000):
        peer = engine.peers.require(far.node_id)
        peer.send_message(subprotocol_id, f"id {subprotocol_id}".encode(), out_of_engine)
    driver.apply(out_of_engine)
    received = await asyncio.to_thread(far.collect, 3)
    assert sorted(event.raw for event in received) == ["id 4660", "id 61440", "id 9320"]

    def bodies(tap: Tap) -> list[bytes]:
        routed = [datagram for outgoing, datagram in tap.routed if outgoing]
        return [datagram[ROUTE_BYTES:] for datagram in routed if datagram[ROUTE_BYTES + 8 :][:2] != b"\0\0"]

    # Heartbeats go on, so the last ones may be on their way.
    sent = set(bodies(before))
    await eventually(lambda: sent <= set(bodies(out)), "what was sent")
    assert set(bodies(out)) <= set(bodies(before))
    assert {int.from_bytes(body[8:10], "little") for body in bodies(out)} >= {0x1234, 0x2468, 0xF000}


async def test_no_part_of_the_profile_is_meant_for_a_real_relay(lab: Lab) -> None:
    _, _, taps = await meet_around(lab)
    inside = {seen.subprotocol_id for tap in taps for seen in tap.seen if seen.outgoing and seen.routed}
    assert Subprotocol.NEGOTIATION in inside
