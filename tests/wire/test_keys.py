from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from meshbus.wire import keys
from meshbus.wire.keys import Role, SessionKeys, derive_keys, nonce_prefix
from tests.vectors import load
from tests.wire.strategies import keys as hashes

VECTORS: list[dict[str, Any]] = load("transport")["kdf"]


@pytest.mark.parametrize("row", VECTORS)
def test_golden_hashes_give_the_golden_keys(row: dict[str, Any]) -> None:
    handshake_hash = bytes.fromhex(row["handshake_hash"])
    to_responder = bytes.fromhex(row["initiator_to_responder_key"])
    to_initiator = bytes.fromhex(row["responder_to_initiator_key"])
    assert keys._keyed_hash(handshake_hash, b"net-kdf-v1").hex() == row["prk"]
    initiator = derive_keys(handshake_hash, Role.INITIATOR)
    assert initiator == SessionKeys(
        session_id=int(row["session_id"], 16),
        nonce_prefix=bytes.fromhex(row["nonce_prefix"]),
        tx_key=to_responder,
        rx_key=to_initiator,
        handshake_hash=handshake_hash,
    )
    responder = derive_keys(handshake_hash, Role.RESPONDER)
    assert (responder.tx_key, responder.rx_key) == (to_initiator, to_responder)


@given(hashes)
def test_the_two_roles_mirror_each_other(handshake_hash: bytes) -> None:
    initiator = derive_keys(handshake_hash, Role.INITIATOR)
    responder = derive_keys(handshake_hash, Role.RESPONDER)
    assert (initiator.tx_key, initiator.rx_key) == (responder.rx_key, responder.tx_key)
    assert initiator.tx_key != initiator.rx_key
    assert (initiator.session_id, initiator.nonce_prefix) == (responder.session_id, responder.nonce_prefix)


def test_the_prefix_folds_both_halves_of_the_session_id() -> None:
    assert nonce_prefix(0x11223344_00000000) == bytes.fromhex("44332211")
    assert nonce_prefix(0x11223344_11223344) == bytes(4)


def test_keys_are_not_shown() -> None:
    session = derive_keys(bytes(range(32)), Role.INITIATOR)
    for shown in (repr(session), str(session), f"{session}", str(session.__rich_repr__())):
        assert f"{session.session_id:016x}" in shown
        assert "key" not in shown.lower().replace("sessionkeys", "")
        assert repr(session.tx_key) not in shown
