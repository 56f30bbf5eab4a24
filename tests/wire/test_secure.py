from __future__ import annotations

import hmac
import itertools
from hashlib import blake2s
from typing import Any

import msgspec
import pytest

from meshbus.errors import BadTag, MalformedPacket
from meshbus.names.identity import Identity, verify_signature
from meshbus.wire.header import Header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.secure import Accept, Offer, decode_secure
from meshbus.wire.seal import Opener, Sealer
from meshbus.wire.secure import Agreement, Chain, Ends, Offering, answer
from tests.vectors import load

ROWS = load("secure")["epochs"]
HASH = bytes(range(32))
ALICE, BOB = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)
ENDS = Ends(ALICE.node_id, BOB.node_id)


def exchange(chain: Chain, number: int = 1) -> tuple[Agreement, Agreement]:
    """Return the outcome of an exchange at the initiator and at the responder."""
    offering = Offering(ALICE, ENDS, chain, bytes([number]) * 32)
    message, theirs = answer(BOB, ENDS, chain, offering.offer, bytes([128 + number]) * 32)
    accept = decode_secure(message)
    assert isinstance(accept, Accept)
    return offering.take(accept), theirs


def offered(chain: Chain) -> tuple[Offering, Accept]:
    offering = Offering(ALICE, ENDS, chain, b"1" * 32)
    accept = decode_secure(answer(BOB, ENDS, chain, offering.offer, b"2" * 32)[0])
    assert isinstance(accept, Accept)
    return offering, accept


def test_both_sides_have_the_same_keys_in_every_epoch_and_never_the_same_twice() -> None:
    chain, seen = Chain.begin(HASH), [derive_keys(HASH, Role.INITIATOR)]
    for number in range(1, 5):
        mine, theirs = exchange(chain, number)
        assert mine.chain == theirs.chain
        assert mine.chain.epoch == number
        assert (mine.keys.tx_key, mine.keys.rx_key) == (theirs.keys.rx_key, theirs.keys.tx_key)
        assert mine.keys.session_id == theirs.keys.session_id
        seen.append(mine.keys)
        chain = mine.chain
    secrets = [key for keys in seen for key in (keys.tx_key, keys.rx_key)]
    assert len(set(secrets)) == len(secrets)
    assert len({keys.session_id for keys in seen}) == len(seen)


def test_keys_open_no_packets_of_another_epoch() -> None:
    first, theirs = exchange(Chain.begin(HASH), 1)
    second, theirs_too = exchange(first.chain, 2)
    epochs = [
        (derive_keys(HASH, Role.INITIATOR), derive_keys(HASH, Role.RESPONDER)),
        (first.keys, theirs.keys),
        (second.keys, theirs_too.keys),
    ]
    for (sending, _), (_, receiving) in itertools.product(epochs, epochs):
        # As if the other session id were in the header: the keys have to differ, not only their names.
        named = msgspec.structs.replace(sending, session_id=receiving.session_id, nonce_prefix=receiving.nonce_prefix)
        packet, opener = Sealer(named).seal(Header(), b"secret"), Opener(receiving)
        if sending.session_id == receiving.session_id:
            assert opener.open(packet)[1] == b"secret"
        else:
            with pytest.raises(BadTag):
                opener.open(packet)


def test_signatures_of_another_session_epoch_or_pair_of_nodes_are_worthless() -> None:
    chain = Chain.begin(HASH)
    offering, accept = offered(chain)
    offer = offering.offer
    for other in (Chain.begin(bytes(32)), exchange(chain)[0].chain):
        with pytest.raises(BadTag):
            answer(BOB, ENDS, other, offer, b"2" * 32)
    for ends in (Ends(ENDS.initiator, 1), Ends(1, ENDS.responder), Ends(ENDS.responder, ENDS.initiator)):
        with pytest.raises(BadTag):
            answer(BOB, ends, chain, offer, b"2" * 32)
    # An answer belongs to one offer.
    with pytest.raises(BadTag):
        Offering(ALICE, ENDS, chain, b"3" * 32).take(accept)


@pytest.mark.parametrize("field", ["epoch", "ephemeral", "entity_id", "signature"])
def test_every_field_is_signed(field: str) -> None:
    chain = Chain.begin(HASH)
    offering, accept = offered(chain)
    changed: dict[str, Any] = {
        "epoch": 2,
        "ephemeral": b"\x09" + bytes(31),
        "entity_id": Identity.from_seed(b"m" * 32).entity_id,
        "signature": bytes(64),
    }
    with pytest.raises(BadTag):
        offering.take(msgspec.structs.replace(accept, **{field: changed[field]}))
    with pytest.raises(BadTag):
        answer(BOB, ENDS, chain, msgspec.structs.replace(offering.offer, **{field: changed[field]}), b"2" * 32)
    # It changes nothing: the right answer is still taken.
    assert offering.take(accept).chain.epoch == 1


def test_a_key_of_low_order_is_refused_even_if_it_is_signed() -> None:
    chain = Chain.begin(HASH)
    row = Offering(ALICE, ENDS, chain, b"1" * 32).offer
    signed = signed_bytes(chain.transcript, 1, 0, (bytes(32), bytes(32)), (ALICE.entity_id, bytes(32)))
    low = msgspec.structs.replace(row, ephemeral=bytes(32), signature=ALICE.sign(signed))
    with pytest.raises(MalformedPacket, match="low order"):
        answer(BOB, ENDS, chain, low, b"2" * 32)


def test_secrets_are_not_shown() -> None:
    chain = exchange(Chain.begin(HASH))[0].chain
    assert repr(chain) == "Chain(epoch=1)"
    assert chain.__rich_repr__() == [("epoch", 1)]


# ── vectors, and the same computation from docs/wire/secure.md with nothing but hashes ──────


def signed_bytes(
    transcript: bytes, epoch: int, role: int, ephemerals: tuple[bytes, bytes], entities: tuple[bytes, bytes]
) -> bytes:
    ids = ENDS.initiator.to_bytes(8, "little") + ENDS.responder.to_bytes(8, "little")
    head = b"meshbus-secure-v1" + transcript + epoch.to_bytes(4, "little") + bytes([role]) + ids
    return head + b"".join((*ephemerals, *entities))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"epoch {row['epoch']}")
def test_vectors_hold(row: dict[str, Any]) -> None:
    raw = {name: bytes.fromhex(value) for name, value in row.items() if isinstance(value, str)}
    alice, bob = Identity.from_seed(raw["initiator_seed"]), Identity.from_seed(raw["responder_seed"])
    ends = Ends(alice.node_id, bob.node_id)
    chain = Chain(row["epoch"] - 1, raw["transcript_before"], raw["secret_before"])
    offering = Offering(alice, ends, chain, raw["initiator_ephemeral_private"])
    assert offering.message == raw["offer"]
    offer = decode_secure(raw["offer"])
    assert isinstance(offer, Offer)
    message, theirs = answer(bob, ends, chain, offer, raw["responder_ephemeral_private"])
    assert message == raw["accept"]
    accept = decode_secure(message)
    assert isinstance(accept, Accept)
    mine = offering.take(accept)
    for agreement, tx, rx in ((mine, "to_responder", "to_initiator"), (theirs, "to_initiator", "to_responder")):
        assert agreement.keys.tx_key == raw[tx]
        assert agreement.keys.rx_key == raw[rx]
        assert agreement.keys.session_id == int.from_bytes(raw["session_id"], "little")
        assert agreement.chain.transcript == raw["transcript"]
        assert agreement.chain.secret == raw["secret"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"epoch {row['epoch']}")
def test_vectors_follow_from_the_document(row: dict[str, Any]) -> None:
    raw = {name: bytes.fromhex(value) for name, value in row.items() if isinstance(value, str)}
    ids = b"".join(
        Identity.from_seed(raw[f"{side}_seed"]).node_id.to_bytes(8, "little") for side in ("initiator", "responder")
    )
    transcript = blake2s(b"meshbus-secure-v1" + raw["transcript_before"] + ids + raw["offer"] + raw["accept"]).digest()
    assert transcript == raw["transcript"]
    # RFC 5869 with HMAC-BLAKE2s.
    extracted, block, expanded = hmac.digest(raw["secret_before"], raw["shared"], blake2s), b"", b""
    for number in range(1, 5):
        block = hmac.digest(extracted, block + b"meshbus-secure-v1" + transcript + bytes([number]), blake2s)
        expanded += block
    assert expanded[:104] == raw["to_responder"] + raw["to_initiator"] + raw["secret"] + raw["session_id"]
    # Layout of a share: kind, epoch, ephemeral, entity, signature.
    offer, accept = raw["offer"], raw["accept"]
    first = b"meshbus-secure-v1" + raw["transcript_before"] + offer[1:5]
    assert verify_signature(
        offer[37:69], first + b"\0" + ids + offer[5:37] + bytes(32) + offer[37:69] + bytes(32), offer[69:]
    )
    second = first + b"\1" + ids + offer[5:37] + accept[5:37] + offer[37:69] + accept[37:69]
    assert verify_signature(accept[37:69], second, accept[69:])
