"""Revocations as rows."""

import pytest

from meshbus.errors import ConfigError
from meshbus.names.identity import Identity
from meshbus.node.policies.revocationrows import record_given, revocation_row
from meshbus.wire.messages.revocation import Revocation, Revoked, encode_record
from meshbus.wire.messages.token import PermissionToken, Scope

ISSUER, ROVER = Identity.from_seed(bytes(range(32))), Identity.from_seed(bytes(32))
RECORD = Revocation.sign(ISSUER, Revoked.PUBLISH, ROVER.entity_id, at=1_700_000_000, reason="stolen")


def test_the_row_of_a_right_and_of_a_token() -> None:
    assert revocation_row(RECORD, "west-rover") == {
        "revoked": "publish",
        "node_id": f"{ROVER.node_id:016x}",
        "name": "west-rover",
        "public_key": ROVER.entity_id.hex(),
        "heir": None,
        "reason": "stolen",
        "at": "2023-11-14T22:13:20+00:00",
        "issuer": ISSUER.entity_id.hex(),
        "until": None,
    }
    token = PermissionToken.issue(ISSUER, ROVER.entity_id, Scope.ALL, "a/b", ttl_s=60, now=0, entropy=bytes)
    record = Revocation.sign(ISSUER, Revoked.TOKEN, token.signed_bytes, at=2**64 - 1, reason="leaked")
    row = revocation_row(record, None)
    assert (row["revoked"], row["public_key"], row["until"]) == (
        "token",
        ROVER.entity_id.hex(),
        "1970-01-01T00:01:00+00:00",
    )
    assert row["at"] == str(2**64 - 1)
    succeeded = revocation_row(Revocation.succeed(ROVER, ISSUER, at=1, reason="new key"), None)
    assert (succeeded["revoked"], succeeded["heir"]) == ("succession", ISSUER.entity_id.hex())
    scope = Scope.ALL | Scope.RENEWABLE
    lasting = PermissionToken.issue(ISSUER, ROVER.entity_id, scope, "a/b", ttl_s=60, now=0, entropy=bytes)
    record = Revocation.sign(ISSUER, Revoked.TOKEN, lasting.signed_bytes, at=1, reason="leaked")
    assert revocation_row(record, None)["until"] is None, "those that were renewed from it may last longer"


def test_a_record_is_given_in_hex() -> None:
    assert record_given(encode_record(RECORD).hex()) == RECORD
    for wrong in ("", "xyz", encode_record(RECORD).hex()[:-2]):
        with pytest.raises(ConfigError, match="is not a revocation"):
            record_given(wrong)
