"""Fan-out: one publisher, several ZeroMQ subscribers, TCP on loopback, unencrypted.

The subscribers are always pyzmq SUB sockets in one process, polled and read in turn. The option `publisher` selects the
publisher: `pyzmq` (an XPUB, which is a PUB that can wait for its subscribers) or `meshbus`. Modes: `single` publishes one
message per call, `batch` passes lists of a thousand, `churn` publishes nothing while one subscriber subscribes and
unsubscribes continuously.

Neither side has a high-water mark, so nothing is lost. With the option `topics`, messages cycle through that many topics,
of which the subscribers want a tenth. An event of the task is one delivery, or one change of a subscription.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import zmq

from bench.peers.pyzmq import take
from bench.peers.task import Link, Meter, Task
from meshbus.edge import Pub

BATCH = 1000
WAIT_MS = 500
MATCHING = 10
"""With topics, one in this many is subscribed."""
HELD = 1000
"""Prefixes held at any time while subscriptions change."""
END = b"~end"
"""The prefix whose subscription ends a churn run."""


def consume(link: Link, task: Task, meter: Meter) -> None:
    """Subscribe with many sockets, and receive until everything has arrived."""
    context, poller = zmq.Context(), zmq.Poller()
    port = link.hear()
    sockets = [context.socket(zmq.SUB) for _ in range(task.options["subscribers"])]
    for socket in sockets:
        socket.set_hwm(0)
        for prefix in _prefixes(task):
            socket.subscribe(prefix)
        socket.connect(f"tcp://127.0.0.1:{port}")
        poller.register(socket, zmq.POLLIN)
    if task.mode == "churn":
        sockets[0].recv()  # the connection is up
        _churn(sockets[0], task)
        meter.count(task.events, task.nbytes)
        return
    while not meter.done:
        for socket, _ in poller.poll(WAIT_MS):
            meter.add(take(socket))


def produce(link: Link, task: Task, meter: Meter) -> int:
    """Bind, wait for the subscribers, and publish; return the number of deliveries."""
    if task.options["publisher"] == "pyzmq":
        _produce_pyzmq(link, task, meter)
    else:
        asyncio.run(_produce_meshbus(link, task, meter))
    return task.events


def _produce_pyzmq(link: Link, task: Task, meter: Meter) -> None:
    socket = zmq.Context().socket(zmq.XPUB)
    socket.set_hwm(0)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    link.tell(socket.bind_to_random_port("tcp://127.0.0.1"))
    for _ in range(task.options["subscribers"] * len(_prefixes(task))):
        socket.recv()
    meter.begin()
    if task.mode == "churn":
        socket.send(_prefixes(task)[0])
        while socket.recv() != b"\x01" + END:
            pass
        socket.send(END)
        return
    for batch in _batches(task):
        for (message,) in batch:
            socket.send(message)


async def _produce_meshbus(link: Link, task: Task, meter: Meter) -> None:
    async with Pub(high_water=0, queue_bytes=0) as pub:
        link.tell(int((await pub.bind("tcp://127.0.0.1:*")).rpartition(":")[2]))
        await pub.wait_subscribed(_prefixes(task)[-1], peers=task.options["subscribers"], timeout_s=20)
        meter.begin()
        if task.mode == "churn":
            pub.publish(_prefixes(task)[0])
            await pub.wait_subscribed(END)
            pub.publish(END)
        for batch in _batches(task) if task.mode != "churn" else ():
            if task.mode == "batch":
                pub.publish_batch(batch)
            else:
                for (message,) in batch:
                    pub.publish(message)
            await asyncio.sleep(0)
        await pub.flush()


def _churn(socket: zmq.Socket[bytes], task: Task) -> None:
    """Change subscriptions, and wait until the publisher has seen the last change."""
    for number in range(task.events // 2 + HELD):
        if number < task.events // 2:
            socket.subscribe(b"robot/%06d/" % number)
        if number >= HELD:
            socket.unsubscribe(b"robot/%06d/" % (number - HELD))
    socket.subscribe(END)
    while not socket.poll(WAIT_MS):
        time.sleep(0)


def _prefixes(task: Task) -> list[bytes]:
    topics = task.options.get("topics")
    if task.mode == "churn":
        return [b"start"]
    return [_topic(number) for number in range(0, topics, MATCHING)] if topics else [b""]


def _topic(number: int) -> bytes:
    return b"sensors/%05d/v" % number


def _batches(task: Task) -> Iterator[Sequence[tuple[bytes]]]:
    """Return the messages to publish, a thousand at a time; creating them is not measured."""
    body = task.pool()[0]
    topics = task.options.get("topics")
    if topics:
        different = [(_topic(number) + body[len(_topic(number)) :],) for number in range(topics)]
    else:
        different = [(body,)] * BATCH
    left = task.events // task.options["subscribers"] * (MATCHING if topics else 1)
    groups = [different[start : start + BATCH] for start in range(0, len(different), BATCH)]
    place = 0
    while left > 0:
        group = groups[place % len(groups)]
        yield group[:left]
        left -= len(group)
        place += 1
