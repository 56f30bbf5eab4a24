"""ZeroMQ applications on two nodes in two subnets: what policy allows arrives once, the rest is refused with a reason."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio

from meshbus.config.edge import EdgeEntry
from meshbus.config.node import NodeConfig
from meshbus.edge.bridge import Bridge, security_of
from meshbus.edge.refusals import Refusal
from meshbus.edge.security import CurveServer, Null, PlainServer, curve_keypair
from meshbus.errors import ConfigError
from meshbus.names.identity import Identity
from meshbus.node.node import Node
from meshbus.policy.reason import Reason
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.edge.apps import app, until

ANYWHERE = "tcp://127.0.0.1:*"
QUICK: dict[str, Any] = {
    "psk": "5a" * 32,
    "ephemeral": True,
    "handshake_timeout_s": 1.0,
    "membership_ack_timeout_s": 2.0,
    "subnet_rules": [
        {"match_tags": ["robot"], "target_subnet": "3.7"},
        {"match_tags": ["office"], "target_subnet": "3"},
    ],
}
POLICY: list[dict[str, object]] = [
    {"prefix": "fleet/"},
    {"prefix": "fleet/near/", "visibility": "subnet-local"},
    {"prefix": "fleet/up/", "visibility": "parent-visible"},
    {"prefix": "fleet/secret/", "require_token": True},
    {"prefix": "fleet/slow/", "max_rate_pps": 3},
    {"name": "fleet/large", "max_event_bytes": 9000},
    {"prefix": "fleet/gpu/", "publish_caps": {"require_tags": ["gpu"]}},
]
END = ["fleet/end", ""]


def entry(**settings: object) -> EdgeEntry:
    chosen = {
        "publishers": ANYWHERE,
        "subscribers": ANYWHERE,
        "notices": ANYWHERE,
        "channels_in": ["fleet/"],
        "channels_out": ["fleet/"],
        **settings,
    }
    return NodeConfig.load(env={}, edge=[chosen]).edge[0]


class Site:
    """A node with an edge, and what was refused there."""

    def __init__(self, node: Node, edge: EdgeEntry) -> None:
        self.node = node
        self.refused: list[Refusal] = []
        self.bridge = Bridge(node, edge, self.refused.append)

    def reasons(self) -> set[tuple[str, str, str]]:
        return {(one.direction, one.topic, one.reason) for one in self.refused}

    def count(self, what: str, why: str) -> int:
        return self.bridge.counters.get(what, {}).get(why, 0)


@asynccontextmanager
async def two_sites(**settings: object) -> AsyncIterator[tuple[Site, Site]]:
    """A robot in subnet 3.7 and an office in subnet 3, connected to each other, each with an edge."""
    identity = Identity.generate(os.urandom)
    config = NodeConfig.load(env={}, **QUICK, subnet="3.7", tags=["robot"], channels=POLICY)
    async with (
        Node(config, identity) as robot,
        Node.open(**QUICK, subnet="3", tags=["office"]) as office,
    ):
        # The robot may publish secrets; the office may not have them.
        now = time.time_ns() / 1e9
        robot.add_token(
            PermissionToken.issue(
                identity, identity.entity_id, Scope.PUBLISH, "fleet/secret/a", ttl_s=60, now=now, entropy=os.urandom
            )
        )
        await office.connect(robot.address, public_key=robot.public_key)
        here, there = Site(robot, entry(**settings)), Site(office, entry(**settings))
        await until(lambda: [str(peer.subnet) for peer in robot.peers] == ["3"])
        await until(lambda: office.peers and office.peers[0].profile)
        async with here.bridge, there.bridge:
            yield here, there


async def test_what_policy_allows_arrives_once_and_the_rest_is_refused_with_its_reason() -> None:
    async with two_sites() as (robot, office):
        assert robot.bridge.publishers is not None
        assert office.bridge.subscribers is not None
        prefixes = ["fleet/", "fleet/up/", "fleet/op", "", "elsewhere/"]
        async with (
            app("pub", robot.bridge.publishers) as lidar,
            app("sub", office.bridge.subscribers, *prefixes) as desk,
        ):
            await until(lambda: office.bridge.wishes == ["fleet/", "fleet/up/"])
            await lidar.send(
                ["fleet/open/a", "1"],
                ["fleet/up/a", "2"],
                ["fleet/near/a", "3"],
                ["fleet/secret/a", "4"],
                ["fleet/gpu/a", "5"],
                ["other/a", "6"],
                ["fleet/Bad", "7"],
                ["fleet/parts", "8", "9"],
                ["alone"],
                ["fleet/large", "x" * 9001],
            )
            await until(lambda: len(robot.reasons()) == 6)
            await until(lambda: robot.count("publish", "sent") + robot.count("publish", "nobody") == 4)
            await lidar.send(END)
            got = await desk.take_until(END)
        assert sorted(got) == [["fleet/open/a", "1"], ["fleet/up/a", "2"]]
        assert robot.reasons() == {
            ("publish", "fleet/gpu/a", "denied"),
            ("publish", "other/a", "not_exposed"),
            ("publish", "fleet/Bad", "bad_topic"),
            ("publish", "fleet/parts", "parts"),
            ("publish", "alone", "parts"),
            ("publish", "fleet/large", "too_large"),
        }
        assert office.reasons() == {
            ("subscribe", "elsewhere/", "not_exposed"),
            ("subscribe", "fleet/secret/a", "unauthorized"),
        }
        assert office.count(*Reason.REFUSE_SUBSCRIBE_NOT_EXPOSED.counter) == 1
        assert robot.node.counters["refuse"]["not_visible"]  # a prefix is no way to learn of such channels
        assert not robot.node.roster.members("fleet/near/a")
        assert robot.count("publish", "nobody") == 2


async def test_large_messages_pass() -> None:
    async with two_sites() as (robot, office):
        assert robot.bridge.publishers is not None
        assert office.bridge.subscribers is not None
        with zmq.asyncio.Context() as context:
            camera, screen = context.socket(zmq.PUB), context.socket(zmq.SUB)
            screen.subscribe(b"fleet/")
            camera.connect(robot.bridge.publishers)
            screen.connect(office.bridge.subscribers)
            frame = os.urandom(16 << 20)
            await until(lambda: office.bridge.wishes == ["fleet/"])
            message: list[bytes] = []

            async def receive() -> None:
                message.extend(await screen.recv_multipart())

            receiving = asyncio.ensure_future(receive())
            while not receiving.done():  # until the subscription to the new channel has come around
                await camera.send_multipart([b"fleet/camera", frame])
                await asyncio.wait([receiving], timeout=2.0)
            assert message == [b"fleet/camera", frame]
            camera.close(0)
            screen.close(0)


async def test_the_rate_of_a_channel_holds_for_applications() -> None:
    async with two_sites() as (robot, office):
        assert robot.bridge.publishers is not None
        assert office.bridge.subscribers is not None
        async with (
            app("pub", robot.bridge.publishers) as lidar,
            app("sub", office.bridge.subscribers, "fleet/") as desk,
        ):
            await until(lambda: office.bridge.wishes)
            large = "x" * 8000  # one packet each, so that the rate counts messages
            messages = [["fleet/slow/a", f"{number}{large}"] for number in range(20)]
            await lidar.send(*messages)
            await until(lambda: robot.count("publish", "sent") + robot.count("refuse_publish", "rate_limited") == 20)
            await lidar.send(END)
            got = await desk.take_until(END)
        assert 3 <= len(got) < 20
        assert len(got) == robot.count("publish", "sent") - 1
        assert [one[1] for one in got] == sorted({one[1] for one in got}, key=lambda text: int(text.rstrip("x")))
        assert ("publish", "fleet/slow/a", "rate_limited") in robot.reasons()


async def test_demand_opens_and_closes_the_subscription_of_the_node() -> None:
    async with two_sites() as (robot, office):
        assert office.bridge.subscribers is not None
        publisher = robot.node.publisher("fleet/open/a")
        members = robot.node.roster.members
        with zmq.asyncio.Context() as context:
            with context.socket(zmq.SUB) as first, context.socket(zmq.SUB) as second:
                for socket in (first, second):
                    socket.linger = 0
                    socket.connect(office.bridge.subscribers)
                assert not members("fleet/open/a")
                first.subscribe("fleet/")
                await until(lambda: members("fleet/open/a"))
                second.subscribe("fleet/open/")
                second.subscribe("fleet/op")  # leads to the same as the first
                await until(lambda: office.bridge.wishes == ["fleet/", "fleet/open/"])
                await publisher.publish(b"both")
                assert await first.recv_multipart() == [b"fleet/open/a", b"both"]
                assert await second.recv_multipart() == [b"fleet/open/a", b"both"]
                first.unsubscribe("fleet/")
                second.unsubscribe("fleet/op")
                await until(lambda: office.bridge.wishes == ["fleet/open/"])
                await publisher.publish(b"second")
                assert await second.recv_multipart() == [b"fleet/open/a", b"second"]
                assert members("fleet/open/a")
            await until(lambda: not members("fleet/open/a"))  # the last application is gone
        assert office.bridge.wishes == []


async def test_refused_channels_are_reported_and_requested_again() -> None:
    async with two_sites(channels_out=["fleet/near/a", "fleet/open/a", "nowhere/a"]) as (robot, office):
        assert office.bridge.subscribers is not None
        async with app("sub", office.bridge.subscribers, "") as desk:
            await until(lambda: len(office.refused) == 2)
            assert office.reasons() == {
                ("subscribe", "fleet/near/a", "unauthorized"),
                ("subscribe", "nowhere/a", "unknown_channel"),
            }
            await until(lambda: robot.node.roster.members("fleet/open/a"))
            await robot.node.publisher("fleet/open/a").publish(b"1")
            assert await desk.next() == ["fleet/open/a", "1"]
            async with Node.open(**QUICK) as third:  # a peer that comes may publish what others do not
                await office.node.connect(third.address, public_key=third.public_key)
                await until(lambda: third.roster.members("nowhere/a"))
                await third.publisher("nowhere/a").publish(b"2")
                assert await desk.next() == ["nowhere/a", "2"]


async def test_topics_may_differ_from_channel_names() -> None:
    async with two_sites(strip="fleet/", add="robot.") as (robot, office):
        assert robot.bridge.publishers is not None
        assert office.bridge.subscribers is not None
        async with (
            app("pub", robot.bridge.publishers) as lidar,
            app("sub", office.bridge.subscribers, "robot.o") as desk,
        ):
            await until(lambda: office.bridge.wishes == ["fleet/"])
            async with office.node.subscribe("fleet/open/a") as beside:
                await lidar.send(["robot.open/a", "1"])
                assert await desk.next() == ["robot.open/a", "1"]
                batch = await beside.next_batch()
                assert batch is not None
                assert batch.channel == "fleet/open/a"


async def test_refusals_are_published_at_the_notices_address() -> None:
    import json

    async with two_sites() as (robot, _):
        assert robot.bridge.publishers is not None
        assert robot.bridge.notices is not None
        pub = robot.bridge._notice_pub
        assert pub is not None
        async with app("pub", robot.bridge.publishers) as lidar, app("sub", robot.bridge.notices, "publish/") as desk:
            await pub.wait_subscribed("publish/", timeout_s=10)
            for _ in range(3):
                await lidar.send(["other/a", "1"])
            topic, told = await desk.next()
            assert topic == "publish/other/a"
            assert json.loads(told)["reason"] == "not_exposed"
            await until(lambda: robot.count("refuse_publish", "not_exposed") == 3)
        assert len(robot.refused) == 1  # told once, counted three times


async def test_an_address_that_cannot_be_had_leaves_nothing_behind() -> None:
    async with Node.open(**QUICK) as node:
        async with Bridge(node, entry()) as bridge:
            second = Bridge(node, entry(publishers=bridge.publishers))
            with pytest.raises(ConfigError, match="choose another address"):
                async with second:
                    pass
        assert not len(second._tasks)
        assert second._endpoints == []


def test_the_files_decide_which_applications_may_attach(tmp_path: Path) -> None:
    assert isinstance(security_of(entry()), Null)
    names, key = tmp_path / "names.toml", tmp_path / "curve.key"
    public, secret = curve_keypair()
    for path, text in ((names, 'robot = "secret"\n'), (key, f"{secret}\n")):
        path.write_text(text)
        path.chmod(0o600)
    assert isinstance(security_of(entry(security="plain", passwords_file=names)), PlainServer)
    sealed = security_of(entry(security="curve", curve_secret_file=key, curve_clients=[public]))
    assert isinstance(sealed, CurveServer)
    assert sealed.public_key == public
    with pytest.raises(ConfigError, match="curve_clients"):
        security_of(entry(security="curve", curve_secret_file=key, curve_clients=["short"]))
