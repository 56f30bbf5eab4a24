"""net-mesh 0.23.0 with its own Python binding: encrypted UDP, like meshbus.

Modes: `stream` is the fastest lossless use that was found: a reliable stream with a 128 KiB window, one full packet of
events per call, a retry after 50 µs when the window is full, and a consumer that polls without pause. `publish` is the
documented way to publish on a channel: one event per call, repeated when the window is full.

The binding cannot wait for an event. Polling without pause occupies a core and gives the shortest latency. The option
`pause_s` sleeps after an empty poll, as a program on a shared machine must. Each event arrives as a text object; the
binding has no cheaper form.
"""

from __future__ import annotations

import time
from typing import Any

import net

from bench.peers.task import Link, Meter, Task
from meshbus.testing.realnode import bound_address

PSK = "42" * 32
CHANNEL = "bench/events"
STREAM = 7
WINDOW_BYTES = 131_072
CAPACITY = 8108
"""Bytes of events in one packet."""
RETRY_S = 0.00005
POLL_LIMIT = 4096


def consume(link: Link, task: Task, meter: Meter) -> None:
    """Listen, subscribe if the mode requires it, and poll."""
    mesh = _node()
    link.tell((bound_address(repr(mesh)), mesh.public_key, mesh.node_id))
    producer_id = link.hear()
    mesh.accept(producer_id)
    mesh.start()
    if task.mode == "publish":
        link.tell("started")
        link.hear()
        mesh.subscribe_channel(producer_id, CHANNEL)
    link.tell("ready")
    pause_s = task.options.get("pause_s", 0.0)
    while not meter.done:
        events = mesh.poll(POLL_LIMIT)
        if events:
            meter.add([event.raw for event in events])
        elif pause_s:
            time.sleep(pause_s)


def produce(link: Link, task: Task, meter: Meter) -> int:
    """Connect and send."""
    address, public_key, consumer_id = link.hear()
    mesh = _node()
    link.tell(mesh.node_id)
    mesh.connect(address, public_key, consumer_id)
    mesh.start()
    if task.mode == "publish":
        link.hear()
        mesh.register_channel(CHANNEL)
        link.tell("registered")
    link.hear()
    if task.mode == "publish":
        return _publish(mesh, task, meter)
    stream = mesh.open_stream(consumer_id, STREAM, reliability="reliable", window_bytes=WINDOW_BYTES)
    return _stream(mesh, stream, task, meter)


def _node() -> Any:
    node: Any = net.NetMesh
    return node("127.0.0.1:0", PSK, num_shards=1, permissive_channels=True)


def _stream(mesh: Any, stream: Any, task: Task, meter: Meter) -> int:
    batches = ([event] for event in task.stamped()) if task.gap_s else task.batches(CAPACITY)
    meter.begin()
    for batch in batches:
        while True:
            try:
                mesh.send_on_stream(stream, batch)
                break
            except net.BackpressureError:
                time.sleep(RETRY_S)
    return task.events


def _publish(mesh: Any, task: Task, meter: Meter) -> int:
    meter.begin()
    for event in task.stamped() if task.gap_s else task.singles():
        while True:
            try:
                mesh.publish(CHANNEL, event)
                break
            except net.ChannelError:
                time.sleep(RETRY_S)
    return task.events
