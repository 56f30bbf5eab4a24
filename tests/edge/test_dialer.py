import asyncio
import socket  # noqa: TID251 - somebody to dial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.config.edgeaddress import IpcAddress, TcpAddress
from meshbus.edge.connection import Connection
from meshbus.edge.dialer import Backoff, Dialer
from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.protocol import Closed
from tests.patience import PATIENCE_S

QUICK = Backoff(first_s=0.001, longest_s=0.002)


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_pauses_double_up_to_the_longest_and_keep_at_least_half(failures: int, chance: float) -> None:
    backoff = Backoff(first_s=0.1, longest_s=30.0)
    pause = backoff.pause_s(failures, CloseReason.EOF, chance)
    whole = min(0.1 * 2.0 ** min(failures, 60), 30.0)
    assert whole / 2 <= pause <= whole


def test_what_will_not_change_soon_is_retried_slowly() -> None:
    assert Backoff().pause_s(0, CloseReason.REFUSED, 0.0) == 30.0
    assert Backoff().pause_s(0, CloseReason.EOF, 0.0) == 0.1


async def test_it_retries_until_the_peer_is_there(tmp_path: Path) -> None:
    failures: list[Closed] = []
    opened = asyncio.get_running_loop().create_future()

    def open_connection(sock: socket.socket, address: str, _: Dialer) -> Connection:
        opened.set_result(address)
        sock.close()
        raise asyncio.CancelledError

    path = tmp_path / "s"
    dialer = Dialer(
        IpcAddress(str(path)),
        backoff=QUICK,
        open_connection=open_connection,
        on_failure=lambda _, closed: failures.append(closed),
    )
    while len(failures) < 3:  # noqa: ASYNC110 - the dialer has no event for a failure
        await asyncio.sleep(0.001)
    assert {closed.reason for closed in failures} == {CloseReason.UNREACHABLE}
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        assert await asyncio.wait_for(opened, PATIENCE_S) == f"ipc://{path}"
    await dialer.close()
    with pytest.raises((TimeoutError, asyncio.CancelledError)):
        await dialer.wait_ready(0.01)


async def test_a_host_that_cannot_be_a_name() -> None:
    failures: list[Closed] = []
    dialer = Dialer(
        TcpAddress("x" * 64 + ".example", 1),
        backoff=QUICK,
        open_connection=lambda *_: pytest.fail("connected"),
        on_failure=lambda _, closed: failures.append(closed),
    )
    while not failures:  # noqa: ASYNC110 - the dialer has no event for a failure
        await asyncio.sleep(0.001)
    assert failures[0].reason is CloseReason.UNREACHABLE
    await dialer.close()
