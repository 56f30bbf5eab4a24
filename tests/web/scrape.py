"""Reads what a node shows over HTTP."""

import http.client
from typing import NamedTuple


class Page(NamedTuple):
    """One answer."""

    status: int
    kind: str
    text: str


def get(address: str, path: str, **headers: str) -> Page:
    """Fetch a page; blocks."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return Page(answer.status, answer.headers["content-type"] or "", answer.read().decode())
    finally:
        connection.close()
