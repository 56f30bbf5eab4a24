"""`meshbus req` and `meshbus reply`: requests and replies from a shell."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from meshbus.cli.exit import Exit
from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, note, show_line, show_text

_MAX_SHOWN = 200
"""Characters of a program's error output that a requester is told."""


def req(
    channel: Annotated[str, Parameter(help="Channel of the responder, such as planner/plan.")],
    payload: Annotated[str | None, Parameter(help="The request; default: all of standard input.")] = None,
    /,
    *,
    node: Annotated[str | None, Parameter(help="Name or id of the node that replies; default: the only peer.")] = None,
    timeout: Annotated[float, Parameter(help="Seconds to wait for the reply.")] = 5.0,
    raw: Annotated[bool, Parameter(help="Print the reply unchanged.", show_default=False)] = False,
    options: MeshOptions | None = None,
    json: Json = False,
) -> None:
    """Send a request to a node's responder and show the reply.

    Exits with status 3 if no reply came in time, and with status 4 if the request was refused or has no responder.
    """
    import asyncio

    from meshbus.cli.numbers import positive
    from meshbus.cli.reach import open_mesh
    from meshbus.names.channel import ChannelName
    from meshbus.node.payload import payload_of

    name, limit_s = ChannelName(channel), positive("--timeout", timeout)
    asked = sys.stdin.buffer.read() if payload is None else payload.encode()

    async def ask() -> dict[str, Any]:
        async with open_mesh(options) as mesh:
            return await mesh.request(name, asked, node=node, timeout_s=limit_s)

    row = asyncio.run(ask())
    if raw:
        sys.stdout.buffer.write(payload_of(row))
        sys.stdout.buffer.flush()
    elif for_people(json):
        show_text(row["payload"] if "payload" in row else repr(payload_of(row)))
    else:
        show_line(row)


def reply(
    channel: Annotated[str, Parameter(help="Channel to answer on, such as planner/plan.")],
    payload: Annotated[
        str | None, Parameter(help="Answer every request with this text; default: with the request.")
    ] = None,
    /,
    *,
    run: Annotated[
        str | None,
        Parameter(
            help="Run this program for every request; it gets the request on standard input and prints the reply."
        ),
    ] = None,
    count: Annotated[int | None, Parameter(help="Stop after this many requests.")] = None,
    options: MeshOptions | None = None,
    json: Json = False,
) -> Exit:
    """Answer the requests of other nodes until Ctrl-C: with a text, a program, or the request itself."""
    import asyncio

    from meshbus.cli.numbers import at_least_one
    from meshbus.cli.reach import open_mesh
    from meshbus.errors import ConfigError
    from meshbus.names.channel import ChannelName
    from meshbus.node.payload import payload_row

    name = ChannelName(channel)
    at_least_one("--count", count)
    if payload is not None and run is not None:
        raise ConfigError("--run", "not allowed with a text; a request has one answer")
    seen = 0

    async def serve() -> None:
        done = asyncio.Event()

        async def answer(question: bytes) -> bytes:
            nonlocal seen
            try:
                reply = await _answer(question, payload, run)
                _show(name, payload_row(question), json=json)
                return reply
            finally:
                seen += 1
                if seen == count:
                    done.set()

        async with open_mesh(options) as mesh:
            await mesh.respond(name, answer, ready=lambda: note(f"answering requests on {name}"), until=done)

    asyncio.run(serve())
    return Exit.OK


async def _answer(question: bytes, text: str | None, program: str | None) -> bytes:
    import asyncio
    import shlex
    from asyncio.subprocess import PIPE

    from meshbus.errors import LocalProtocolError

    if program is None:
        return question if text is None else text.encode()
    try:
        child = await asyncio.create_subprocess_exec(*shlex.split(program), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    except (OSError, ValueError, TypeError) as error:
        note(f"{program!r} cannot be run: {error}; the requester is told")
        raise LocalProtocolError("the program of the responder cannot be run") from None
    out, err = await child.communicate(question)
    if child.returncode:
        said = err.decode("utf-8", "replace").strip()[-_MAX_SHOWN:]
        note(f"{program!r} exited with status {child.returncode}: {said}; the requester is told")
        raise LocalProtocolError(f"the program of the responder exited with status {child.returncode}")
    return out


def _show(channel: str, request: dict[str, str], *, json: bool) -> None:
    if for_people(json):
        show_text(f"{channel}  {request.get('payload') or request.get('payload_base64', '')}")
    else:
        show_line({"channel": channel, **request})
