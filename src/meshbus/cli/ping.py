"""`meshbus ping`: how long a message to a peer and its answer take."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from meshbus.cli.exit import Exit
from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, note, show_line, show_text


def ping(
    node: Annotated[str | None, Parameter(help="Name or id of a peer; default: the only one.")] = None,
    /,
    *,
    count: Annotated[int, Parameter(help="How many messages to send.")] = 4,
    interval: Annotated[float, Parameter(help="Seconds between them.")] = 0.5,
    timeout: Annotated[float, Parameter(help="Seconds to wait for each answer.")] = 5.0,
    options: MeshOptions | None = None,
    json: Json = False,
) -> Exit:
    """Measure the round trip to a peer; a net-mesh 0.23 node answers too.

    Exits with status 3 if no answer came, and with status 5 if some did not.
    """
    import asyncio

    from meshbus.cli.asking import called
    from meshbus.cli.numbers import at_least_one, positive
    from meshbus.cli.reach import open_mesh

    at_least_one("--count", count)
    limit_s, pause_s = positive("--timeout", timeout), positive("--interval", interval)
    times: list[float] = []

    async def measure() -> None:
        async with open_mesh(options) as mesh:
            for number in range(count):
                if number:
                    await asyncio.sleep(pause_s)
                row = await _once(mesh, node, limit_s)
                if row is None:
                    continue
                times.append(row["rtt_ms"])
                if for_people(json):
                    show_text(f"{called(row)}: {row['rtt_ms']:.3f} ms")
                else:
                    show_line(row)

    asyncio.run(measure())
    if for_people(json) and times:
        middle = sorted(times)[len(times) // 2]
        show_text(
            f"{len(times)} of {count} answered; {min(times):.3f} / {middle:.3f} / {max(times):.3f} ms min/median/max"
        )
    if not times:
        return Exit.UNREACHABLE
    return Exit.OK if len(times) == count else Exit.PARTIAL


async def _once(mesh: Any, node: str | None, timeout_s: float) -> dict[str, Any] | None:
    """Ping once; a missing answer is a line, and the next one is tried."""
    from meshbus.cli.exit import Refusal
    from meshbus.errors import Timeout

    try:
        row: dict[str, Any] = await mesh.ping(node, timeout_s)
    except Timeout as error:
        note(str(error))
        return None
    except Refusal as error:
        if error.answered != Timeout.code:
            raise
        note(str(error))
        return None
    return row
