"""pyzmq, PUSH to PULL over TCP on loopback, unencrypted.

Modes: `single` sends one message per event, as most programs do. `framed` puts as many events into a message as fit into
one meshbus packet, each with a length prefix, and splits them in Python on receipt, as a careful user would.

Both sides stop at 10 000 waiting messages, so nothing is lost; the sender then blocks.
"""

from __future__ import annotations

import struct

import zmq

from bench.peers.task import Link, Meter, Task

HIGH_WATER = 10_000
CAPACITY = 8108
TURN = 1000
"""Messages received before they are counted."""
WAIT_MS = 500

_LENGTH = struct.Struct("<I")
_LENGTH_BYTES = _LENGTH.size


def consume(link: Link, task: Task, meter: Meter) -> None:
    """Pull until everything has arrived."""
    pull = zmq.Context().socket(zmq.PULL)
    pull.set_hwm(HIGH_WATER)
    link.tell(pull.bind_to_random_port("tcp://127.0.0.1"))
    pull.recv()  # the connection is up
    link.tell("ready")
    while not meter.done:
        if pull.poll(WAIT_MS):
            messages = take(pull)
            meter.add(_cut(messages) if task.mode == "framed" else messages)


def produce(link: Link, task: Task, meter: Meter) -> int:
    """Connect and push."""
    push = zmq.Context().socket(zmq.PUSH)
    push.set_hwm(HIGH_WATER)
    push.connect(f"tcp://127.0.0.1:{link.hear()}")
    push.send(b"")
    link.hear()
    meter.begin()
    if task.gap_s:
        for event in task.stamped():
            push.send(_join([event]) if task.mode == "framed" else event)
    elif task.mode == "framed":
        for batch in task.batches(CAPACITY):
            push.send(_join(batch))
    else:
        for batch in task.batches(CAPACITY):
            for event in batch:
                push.send(event)
    return task.events


def take(pull: zmq.Socket[bytes]) -> list[bytes]:
    """Return messages that have arrived, up to a limit."""
    messages: list[bytes] = []
    try:
        while len(messages) < TURN:
            messages.append(pull.recv(zmq.NOBLOCK))
    except zmq.Again:
        pass
    return messages


def _join(events: list[bytes]) -> bytes:
    pack = _LENGTH.pack
    return b"".join([pack(len(event)) + event for event in events])


def _cut(messages: list[bytes]) -> list[bytes]:
    events: list[bytes] = []
    unpack = _LENGTH.unpack_from
    for message in messages:
        at = 0
        while at < len(message):
            start = at + _LENGTH_BYTES
            at = start + unpack(message, at)[0]
            events.append(message[start:at])
    return events
