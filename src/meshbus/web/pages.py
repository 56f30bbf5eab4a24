"""The files of the live page, and the headers that confine it.

The files come with the package and name no other host, so the page works without a network. They hold nothing about a node,
so everybody may read them; the data comes from `/events`.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response

CONFINED = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers of every page: scripts and styles of this server only, no text becomes a script, no frames, no other hosts."""
PRIVATE = {**CONFINED, "cache-control": "no-store"}
"""Headers of answers about a node."""

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Pages:
    """The files, read once."""

    def __init__(self) -> None:
        folder = files("meshbus.web") / "static"
        self._files = {
            place.name: place.read_bytes() for place in folder.iterdir() if place.name.rpartition(".")[2] in _TYPES
        }
        self.names = sorted(self._files)

    def answer(self, name: str, tag: str = "") -> Response:
        """Return a file; `tag` is what the browser says that it already has."""
        content = self._files[name]
        etag = f'"{sha256(content).hexdigest()[:32]}"'
        headers = {**CONFINED, "cache-control": "no-cache", "etag": etag}
        if tag == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, "content-type": _TYPES[name.rpartition(".")[2]]})
