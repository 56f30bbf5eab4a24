"""The newcomer's side of a join: connect, prove the token, store what is granted, confirm.

    identity on disk ──► exchange ──► waits for approval? ask again
                                  ──► granted: files on disk (settling.py) ──► confirm

The identity is made first and stays: after a crash or a lost answer, the same command asks again with the same key, for which the
invite is still good. Its secret never leaves the machine. The other side is inviting.py, the exchange wire/joining.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from meshbus.config.spelling import Endpoint, parse_endpoint
from meshbus.errors import (
    BadTag,
    ConfigError,
    HandshakeError,
    HandshakeFault,
    JoinError,
    MalformedPacket,
    Timeout,
)
from meshbus.keyfile import load_or_create
from meshbus.names.identity import Identity
from meshbus.node.invites.settling import Joined, Reached, identity_of, settle
from meshbus.policy.reason import Reason
from meshbus.wire.invitation import InviteToken, parse_invite
from meshbus.wire.joining import LENGTH_BYTES, JoinAnswer, Newcomer, Refused, Waiting

CONNECT_S = 10.0
"""How long to wait for a connection."""
ANSWER_S = 30.0
"""How long to wait for the answer, which the other side writes to its disk first."""
ASK_S = 2.0
"""How often a newcomer that waits for approval asks. Our choice: quick for people, and nothing for the other side."""
WAIT_S = 600.0
"""How long a newcomer waits for approval by default."""

_BY_WORD = {reason.why: reason for reason in Reason if reason.why.startswith("join_")}


async def join(
    token: str,
    address: str,
    config: Path | str = "node.toml",
    *,
    bind: str | None = None,
    wait_s: float = WAIT_S,
    on_waiting: Callable[[str], None] | None = None,
) -> Joined:
    """Join a fleet by the token of an invite, and write the configuration of the new node and what belongs to it.

    `address` is where the inviting node listens for newcomers, `config` the file to create; identity, mesh key and certificate
    are written beside it. If an operator has to approve, `on_waiting` is called once with the id of the invite, and the call
    waits up to `wait_s` seconds. Raises JoinError with the reason if the node is not admitted, HandshakeError if the inviting
    node cannot be reached or is not the one of the token, Timeout if nobody approves, and ConfigError for files that exist.
    """
    invite, place, target = parse_invite(token), Path(config), parse_endpoint(address)
    listen = None if bind is None else parse_endpoint(bind)
    identity = await asyncio.to_thread(_own_identity, place)
    deadline = time.monotonic() + wait_s
    waiting = False
    while True:
        try:
            outcome = await _once(invite, identity, target, place, listen)
        except HandshakeError as error:
            # While it waits for approval, the inviting node may start again.
            if not waiting or error.fault is not HandshakeFault.TIMEOUT:
                raise
        else:
            if isinstance(outcome, Joined):
                return outcome
            if not waiting and on_waiting is not None:
                on_waiting(outcome.invite)
            waiting = True
        if time.monotonic() + ASK_S > deadline:
            raise Timeout("approval of this node by an operator", wait_s)
        await asyncio.sleep(ASK_S)


def _own_identity(place: Path) -> Identity:
    """Return the identity that joins: one of an earlier try, or a new one. Raises ConfigError if the node has joined."""
    if place.exists():
        raise ConfigError(
            "config", "exists, and is never overwritten; choose another name, or move the file away", source=str(place)
        )
    return load_or_create(identity_of(place))


async def _once(
    invite: InviteToken, identity: Identity, target: Endpoint, place: Path, listen: Endpoint | None
) -> Joined | Waiting:
    """Ask once; return what was stored, or that an operator has to approve."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(target.host, target.port)
    except (OSError, TimeoutError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise HandshakeError(
            HandshakeFault.TIMEOUT,
            f"cannot connect to {target} (TCP): {why}; check the address that `meshbus invite` printed, that the invite is"
            " still open, and the firewall",
        ) from None
    try:
        newcomer = Newcomer(invite, identity, os.urandom(32))
        answer = await _answer(newcomer, reader, writer, target)
        if isinstance(answer, Refused):
            raise JoinError(answer.reason, f"not admitted by {target}: {answer.problem}")
        if isinstance(answer, Waiting):
            return answer
        here = str(writer.get_extra_info("sockname")[0])
        joined = await asyncio.to_thread(settle, place, invite, identity, answer, Reached(target.host, here, listen))
        writer.write(newcomer.done())
        with suppress(
            ConnectionError
        ):  # everything is stored; without the confirmation, the invite is bound to this key
            await writer.drain()
        return joined
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _answer(
    newcomer: Newcomer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Endpoint
) -> JoinAnswer:
    """Send the hello and read the answer. Raises HandshakeError and JoinError."""
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(newcomer.hello)
            length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
            if length:
                return newcomer.take(await reader.readexactly(length))
            word = await reader.readexactly((await reader.readexactly(1))[0])
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        raise HandshakeError(
            HandshakeFault.TIMEOUT, f"{target} ended the exchange without an answer; try again, or look at its log"
        ) from None
    except (BadTag, MalformedPacket):
        raise HandshakeError(
            HandshakeFault.WRONG_KEY,
            f"{target} is not the node that made this token, or what it sends is changed on the way; check the address, and"
            " ask for a new invite",
        ) from None
    raise _hint(word, target)


def _hint(word: bytes, target: Endpoint) -> JoinError:
    """Return the error for an answer that is not sealed, and may come from anybody on the way."""
    reason = _BY_WORD.get(word.decode("ascii", "replace"), Reason.REFUSE_JOIN_UNKNOWN)
    return JoinError(reason.why, f"not admitted by {target}: {reason.sentence}")
