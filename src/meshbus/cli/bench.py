"""`meshbus bench`: how many events per second go between two nodes, and how long they take."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.exit import Exit
from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, note, show_facts

app = App(name="bench")

CHANNEL = "bench/load"
_LOCAL_S = 120.0
"""How long a test on this machine may take. Our choice: longer than any that somebody waits for."""
Channel: TypeAlias = Annotated[str, Parameter(help="Channel of the test; use one without other publishers.")]
Events: TypeAlias = Annotated[int, Parameter(help="How many events to send.")]
Size: TypeAlias = Annotated[int, Parameter(help="Bytes of each event.")]
Reliable: TypeAlias = Annotated[bool, Parameter(help="Retransmit lost packets.", negative="--unreliable")]


@app.command
def receive(
    channel: Channel = CHANNEL,
    /,
    *,
    timeout: Annotated[float, Parameter(help="Seconds to wait for the test to begin and end.")] = 60.0,
    options: MeshOptions | None = None,
    json: Json = False,
) -> Exit:
    """Measure the test that another node sends; start this first, then `meshbus bench send` there.

    Exits with status 3 if nothing came in time, and with status 5 if events are missing. The latency compares the clocks
    of both machines, so they must be in step.
    """
    import asyncio

    from meshbus.cli.numbers import positive
    from meshbus.cli.reach import open_mesh
    from meshbus.names.channel import ChannelName

    name, limit_s = ChannelName(channel), positive("--timeout", timeout)

    async def measure() -> dict[str, Any] | None:
        async with open_mesh(options) as mesh:
            note(f"measuring the next test on {name}")
            return await mesh.measure(name, timeout_s=limit_s)

    return _show(asyncio.run(measure()), limit_s, json=json)


@app.command
def send(
    channel: Channel = CHANNEL,
    /,
    *,
    events: Events = 100_000,
    size: Size = 256,
    reliable: Reliable = True,
    wait: Annotated[float, Parameter(help="Seconds to wait for `meshbus bench receive`.")] = 10.0,
    options: MeshOptions | None = None,
    json: Json = False,
) -> None:
    """Send events as fast as the other node takes them."""
    import asyncio

    from meshbus.cli.events import wait_for_subscriber
    from meshbus.cli.numbers import positive
    from meshbus.cli.reach import open_mesh
    from meshbus.names.channel import ChannelName

    name, wait_s = ChannelName(channel), positive("--wait", wait)
    _check(events, size)

    async def load() -> dict[str, Any]:
        async with open_mesh(options, publishes=name) as mesh:
            await wait_for_subscriber(mesh, name, wait_s)
            return await mesh.load(name, events=events, size=size, reliable=reliable)

    show_facts(_rounded(asyncio.run(load())), json=json)


@app.command
def local(*, events: Events = 100_000, size: Size = 256, reliable: Reliable = True, json: Json = False) -> Exit:
    """Measure between two nodes on this machine that run for the test only, each in a process of its own."""
    import asyncio

    _check(events, size)
    return _show(asyncio.run(_between_two(events, size, reliable)), _LOCAL_S, json=json)


async def _between_two(events: int, size: int, reliable: bool) -> dict[str, Any] | None:
    import asyncio
    import sys
    import tempfile
    from contextlib import suppress
    from pathlib import Path

    import msgspec

    from meshbus.keyfile import create_psk
    from meshbus.node.loadtest import measure_load
    from meshbus.node.node import Node

    with tempfile.TemporaryDirectory(prefix="meshbus-bench-") as folder:
        key = Path(folder) / "mesh.key"
        create_psk(key)
        async with Node.open(psk_file=key, ephemeral=True) as node:
            way = [f"--connect={node.address}", f"--public-key={node.public_key.hex()}"]
            way += [f"--set=psk_file={key}", "--set=ephemeral=true"]
            load = [f"--events={events}", f"--size={size}", *([] if reliable else ["--unreliable"])]
            sender = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "meshbus", "bench", "send", *load, *way, stdout=asyncio.subprocess.DEVNULL
            )
            try:
                found = await measure_load(node, CHANNEL, timeout_s=_LOCAL_S)
            finally:
                with suppress(ProcessLookupError):
                    sender.terminate()
                await sender.wait()
            return None if found is None else msgspec.structs.asdict(found)


def _check(events: int, size: int) -> None:
    """Raise ConfigError for a load that no node sends, before any connection is made."""
    from meshbus.errors import ConfigError
    from meshbus.node.loadtest import MAX_RUN, MIN_SIZE
    from meshbus.wire.constants import MAX_EVENT

    if not 1 <= events <= MAX_RUN:
        raise ConfigError("--events", f"must be from 1 to {MAX_RUN}, got {events}; try --events 100000")
    if not MIN_SIZE <= size <= MAX_EVENT:
        raise ConfigError("--size", f"must be from {MIN_SIZE} to {MAX_EVENT} bytes, got {size}; try --size 256")


def _show(found: dict[str, Any] | None, waited_s: float, *, json: bool) -> Exit:
    if found is None:
        note(f"no test began within {waited_s:g} s; start `meshbus bench send` on the other node")
        return Exit.UNREACHABLE
    show_facts(_rounded(found), json=json)
    if found["missing"]:
        if for_people(json):
            note(f"{found['missing']} events are missing; send with --reliable to have lost packets sent again")
        return Exit.PARTIAL
    return Exit.OK


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Return figures without digits that mean nothing."""
    digits = {"seconds": 3, "events_per_s": 0}
    return {
        key: round(value, digits[key]) if key in digits and value is not None else value for key, value in row.items()
    }
