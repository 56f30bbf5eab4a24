"""Two real net-mesh nodes talk to each other under our control, which proves the harness, not meshbus."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from meshbus.errors import ConfigError, Timeout
from meshbus.names.identity import Identity
from meshbus.node.driving.udp import UdpSocket
from meshbus.testing import realnode
from meshbus.testing.realpeer import PeerEvent, RealPeer, RealPeerError
from tests.patience import PATIENCE_S

PSK = bytes(range(32))


@pytest.fixture(scope="module")
def publisher() -> Iterator[RealPeer]:
    channels: list[dict[str, Any]] = [
        {"name": "lab/open"},
        {"name": "lab/gpu", "subscribe_caps": {"require_tags": ["gpu"]}},
        {"name": "lab/token", "require_token": True},
    ]
    with RealPeer(psk=PSK, seed=b"p" * 32, channels=channels) as peer:
        yield peer


@pytest.fixture(scope="module")
def subscriber(publisher: RealPeer) -> Iterator[RealPeer]:
    with RealPeer(psk=PSK) as peer:
        join(publisher, peer)
        yield peer


def join(listener: RealPeer, caller: RealPeer) -> None:
    accepting = listener.begin("accept", caller.node_id)
    caller.connect(listener.address, listener.public_key, listener.node_id)
    assert accepting.result(5) == caller.address
    listener.start()
    caller.start()


def test_a_peer_says_who_and_where_it_is(publisher: RealPeer) -> None:
    identity = Identity.from_seed(b"p" * 32)
    assert publisher.seed == b"p" * 32
    assert publisher.node_id == identity.node_id
    assert publisher.entity_id == identity.entity_id
    assert publisher.origin_hash == identity.origin_hash
    assert len(publisher.public_key) == 32
    assert publisher.address.startswith("127.0.0.1:")
    assert publisher.pid not in {0, os.getpid()}


def test_peers_connect(publisher: RealPeer, subscriber: RealPeer) -> None:
    assert publisher.peer_count() == subscriber.peer_count() == 1


def test_a_subscriber_polls_what_is_published(publisher: RealPeer, subscriber: RealPeer) -> None:
    assert publisher.publish("lab/open", b"too early")["attempted"] == 0
    subscriber.subscribe_channel(publisher.node_id, "lab/open")
    assert publisher.publish("lab/open", "grüße".encode()) == {"attempted": 1, "delivered": 1, "errors": []}
    assert subscriber.collect(1) == [PeerEvent("grüße", "0:0")]
    assert publisher.publish_all("lab/open", [str(n).encode() for n in range(1500)]) == 1500
    assert [event.raw for event in subscriber.collect(1500)] == [str(n) for n in range(1500)]
    subscriber.unsubscribe_channel(publisher.node_id, "lab/open")
    assert publisher.publish("lab/open", b"too late")["attempted"] == 0
    assert subscriber.poll() == []


def test_a_refusal_keeps_its_kind(publisher: RealPeer, subscriber: RealPeer) -> None:
    with pytest.raises(RealPeerError, match=r"ChannelError: .*unknown channel") as unknown:
        subscriber.subscribe_channel(publisher.node_id, "lab/nothing")
    assert unknown.value.kind == "ChannelError"
    with pytest.raises(RealPeerError, match="unauthorized") as denied:
        subscriber.subscribe_channel(publisher.node_id, "lab/gpu")
    assert denied.value.kind == "ChannelAuthError"


def test_an_announced_capability_is_found_and_opens_a_channel(publisher: RealPeer, subscriber: RealPeer) -> None:
    subscriber.announce_capabilities({"tags": ["gpu"]})
    deadline = time.monotonic() + PATIENCE_S
    while subscriber.node_id not in publisher.find_nodes({"require_tags": ["gpu"]}):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    subscriber.subscribe_channel(publisher.node_id, "lab/gpu")
    assert publisher.find_nodes({"require_tags": ["no such tag"]}) == []


def test_tokens_are_issued_checked_and_presented(publisher: RealPeer, subscriber: RealPeer) -> None:
    token = publisher.issue_token(subscriber.entity_id, ["subscribe", "delegate"], "lab/token", 60, 1)
    subscriber.install_token(token)
    assert publisher.call("verify_token", token)
    assert subscriber.call("parse_token", token)["issuer"] == publisher.entity_id
    passed_on = subscriber.call("delegate_token", token, bytes(32), ["subscribe"])
    assert subscriber.call("parse_token", passed_on)["delegation_depth"] == 0
    forged = token[:-1] + bytes([token[-1] ^ 1])
    with pytest.raises(RealPeerError, match="invalid_signature"):
        subscriber.install_token(forged)
    with pytest.raises(RealPeerError, match="unauthorized"):
        subscriber.subscribe_channel(publisher.node_id, "lab/token")
    subscriber.subscribe_channel(publisher.node_id, "lab/token", token)


def test_a_stream_runs_out_of_credit_and_gets_it_back(publisher: RealPeer, subscriber: RealPeer) -> None:
    assert publisher.stream_stats(subscriber.node_id, 7) is None
    publisher.open_stream(subscriber.node_id, 7, reliability="reliable", window_bytes=1000)
    with pytest.raises(RealPeerError) as full:
        publisher.send(subscriber.node_id, 7, [bytes(2000)])
    assert full.value.kind == "BackpressureError"
    publisher.send_all(subscriber.node_id, 7, [b"x" * 500] * 100)
    assert [event.raw for event in subscriber.collect(100)] == ["x" * 500] * 100
    stats = publisher.stream_stats(subscriber.node_id, 7)
    assert stats is not None
    assert stats["tx_window"] == 1000
    assert stats["tx_seq"] >= 100


def test_any_other_method_of_the_binding_is_called_by_name(publisher: RealPeer) -> None:
    assert publisher.call("nat_type") == "unknown"
    with pytest.raises(RealPeerError, match="net-mesh has no method 'fly'"):
        publisher.call("fly")
    with pytest.raises(RealPeerError, match="net-mesh has no method '_identity'"):
        publisher.call("_identity")


async def test_a_coroutine_may_wait_without_blocking_its_loop(publisher: RealPeer, subscriber: RealPeer) -> None:
    collecting = asyncio.wrap_future(subscriber.begin("collect", 1, 5.0))
    await asyncio.to_thread(publisher.register_channel, "lab/later")
    await asyncio.to_thread(subscriber.subscribe_channel, publisher.node_id, "lab/later")
    await asyncio.to_thread(publisher.publish, "lab/later", b"done")
    assert await collecting == [["done", "0:0"]]


async def test_a_caller_who_stops_waiting_does_not_disturb_the_others(subscriber: RealPeer) -> None:
    abandoned = asyncio.wrap_future(subscriber.begin("collect", 1, 0.05))
    await asyncio.sleep(0)
    abandoned.cancel()
    assert await asyncio.to_thread(subscriber.collect, 1, 0.2) == []


def test_a_paused_peer_is_silent_until_it_resumes() -> None:
    with RealPeer(psk=PSK) as peer:  # which takes longer to start on a busy machine than it may take to answer
        peer.timeout_s = 0.3
        peer.pause()
        with pytest.raises(Timeout, match=r"real peer peer_count: no answer within 0\.3 s"):
            peer.peer_count()
        with pytest.raises(Timeout):  # larger than any pipe
            peer.publish("x", bytes(1 << 20))
        peer.resume()
        peer.timeout_s = 5
        assert peer.peer_count() == 0
        peer.pause()


def test_a_killed_peer_fails_those_who_wait_and_its_port_is_free() -> None:
    peer = RealPeer(psk=PSK, heartbeat_interval_ms=100, session_timeout_ms=300)
    waiting = peer.begin("accept", 1)
    peer.kill()
    with pytest.raises(RealPeerError, match="Gone: the process of the real peer has exited"):
        waiting.result(5)
    with pytest.raises(RealPeerError, match="Gone"):
        peer.peer_count()
    peer.close()
    with RealPeer(psk=PSK, bind=peer.address) as again:
        assert again.address == peer.address


def test_a_peer_that_dies_by_itself_says_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realnode, "__name__", "meshbus.testing.nothing")
    with pytest.raises(RealPeerError, match=r"No module named meshbus\.testing\.nothing"):
        RealPeer(psk=PSK)


def test_a_node_that_cannot_be_made_leaves_no_process() -> None:
    with pytest.raises(RealPeerError, match="ValueError: PSK must be 32 bytes"):
        RealPeer(psk=b"short")


def test_closing_twice_is_fine_and_ends_the_process() -> None:
    peer = RealPeer(psk=PSK)
    peer.begin("accept", 1)
    peer.close()
    peer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(peer.pid, 0)


def test_a_peer_ends_with_the_process_that_started_it() -> None:
    program = f"""
import os
from meshbus.testing.realpeer import RealPeer
print(RealPeer(psk={PSK!r}).address, flush=True)
os._exit(0)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert _becomes_free(answer.stdout.strip(), within_s=10)


def _becomes_free(address: str, *, within_s: float) -> bool:
    """Whether nobody listens there any more."""
    deadline = time.monotonic() + within_s
    host, _, port = address.rpartition(":")
    while time.monotonic() < deadline:
        try:
            UdpSocket.bind(host, int(port)).close()
        except ConfigError:
            time.sleep(0.02)
        else:
            return True
    return False


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realnode, "MODULE", "no_such_module")
    with pytest.raises(ConfigError, match=r"net-mesh: RealPeer needs .*install net-mesh==0\.23\.0"):
        RealPeer(psk=PSK)
