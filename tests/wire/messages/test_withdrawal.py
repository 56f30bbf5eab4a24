from __future__ import annotations

from typing import Any

import pytest

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.messages.withdrawal import RouteWithdrawal, decode_withdrawal, encode_withdrawal
from tests.fuzz import assert_survives
from tests.vectors import load

ROWS = [row for row in load("dialects")["messages"] if row["subprotocol"] == "0x0c01"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["version"])
def test_withdrawals_of_real_nodes_read_and_write(row: dict[str, Any]) -> None:
    withdrawal = decode_withdrawal(bytes.fromhex(row["hex"]))
    assert withdrawal == RouteWithdrawal(dest=int(row["fields"]["dest"], 16), seq=int(row["fields"]["seq"], 16))
    assert encode_withdrawal(withdrawal).hex() == row["hex"]


@pytest.mark.parametrize(("size", "fault"), [(15, Fault.TRUNCATED), (17, Fault.TRAILING)])
def test_other_lengths_are_refused(size: int, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_withdrawal(bytes(size))
    assert caught.value.fault is fault


def test_damaged_withdrawals_never_crash() -> None:
    assert_survives(decode_withdrawal, [bytes.fromhex(row["hex"]) for row in ROWS], randoms=20_000)
