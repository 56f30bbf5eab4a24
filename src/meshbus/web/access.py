"""Who may read over HTTP.

Without a token, on loopback, everybody on this machine: but only under a name of this machine, so that a page from elsewhere
cannot read a node through a browser by giving its own name the address 127.0.0.1. With a token, whoever sends it: programs in
the header `Authorization: Bearer TOKEN`, and browsers once, for which they get a cookie. The cookie has no secret in it that
could be used elsewhere: it holds the time until which it is valid, signed with a key that is made from the token. Nothing is
remembered here, and a new token ends all sessions.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256

from meshbus.config.web import is_loopback

SESSION_S = 12 * 3600
"""How long a browser may read after a login. Our choice: a working day."""
UNKNOWN_READER = "send the token of this node: Authorization: Bearer TOKEN; in a browser, open /login"
WRONG_HOST = "this node is served without a token, to this machine only; open it as 127.0.0.1 or localhost, or set web.token_file"
_PURPOSE = b"meshbus web session\0"


class Access:
    """Decides about requests by their headers and cookies."""

    def __init__(self, node_id: int, token: str | None) -> None:
        self.cookie_name = f"meshbus-{node_id:016x}"
        """Not the same for two nodes: browsers share cookies among all ports of a host."""
        self._token = None if token is None else token.encode()
        self._key = b"" if token is None else sha256(_PURPOSE + token.encode()).digest()

    def refusal(self, headers: Mapping[str, str], cookies: Mapping[str, str], now_s: int) -> tuple[int, str] | None:
        """Return the status and the sentence with which a request is refused, or None."""
        if self._token is None:
            return None if is_loopback(_host_in(headers.get("host", ""))) else (421, WRONG_HOST)
        if self.has_token(headers) or self._valid(cookies.get(self.cookie_name, ""), now_s):
            return None
        return 401, UNKNOWN_READER

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers carry the token."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if self._token is None or kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self._token)

    def session(self, now_s: int) -> str:
        """Return the cookie of a browser that has sent the token."""
        until = now_s + SESSION_S
        return f"{until}.{self._sign(until)}"

    def _valid(self, cookie: str, now_s: int) -> bool:
        until, _, signature = cookie.partition(".")
        if not (until.isascii() and until.isdigit() and len(until) < 16):
            return False
        return hmac.compare_digest(signature.encode(), self._sign(int(until)).encode()) and now_s < int(until)

    def _sign(self, until: int) -> str:
        return hmac.new(self._key, str(until).encode(), sha256).hexdigest()


def _host_in(header: str) -> str:
    """Return the host of a `Host` header, without the port and without the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
