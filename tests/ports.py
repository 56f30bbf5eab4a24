"""Ports for nodes that must know each other's address before they run."""

import socket  # noqa: TID251 - to find free ports
from contextlib import ExitStack


def free_udp_ports(number: int) -> list[int]:
    """Return UDP ports of this machine that nobody uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
