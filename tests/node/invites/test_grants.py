"""What a newcomer is given: signed, complete, and with addresses that it can use."""

from typing import Any

import pytest

from meshbus.config.node import NodeConfig, PeerEntry
from meshbus.config.spelling import Endpoint
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.node.invites.grants import MOST_PEERS, Grants, NodeState
from meshbus.policy.invites import Invite, InviteSpec, InviteState
from meshbus.wire.certificate import decode_certificate
from meshbus.wire.joining import Granted, GrantedPeer

ISSUER, ROBOT = Identity.from_seed(b"i" * 32), Identity.from_seed(b"r" * 32)
INVITE = Invite(
    invite_id=b"12345678",
    psk=b"p" * 32,
    issuer=ISSUER.entity_id,
    expires=99,
    spec=InviteSpec(name="rover-7", tags=("lidar",), subnet=SubnetId.parse("3.7"), valid_s=1000),
    state=InviteState.GRANTED,
    subject=ROBOT.entity_id,
)


HERE = Endpoint("10.0.0.7", 9000)


def granted(address: Endpoint = HERE, **settings: Any) -> Granted:
    state = NodeState(lambda: b"m" * 32, lambda: (b"t" * 32,), lambda: address, lambda node_id: node_id == 7, b"r" * 32)
    grants = Grants(NodeConfig(**settings), ISSUER, state)
    assert not grants.revoked(ROBOT.entity_id)
    assert grants.issuer == ISSUER.entity_id
    return grants.grant(INVITE, 5000.5)


def test_the_certificate_says_what_the_invite_says() -> None:
    certificate = decode_certificate(granted().certificate)
    certificate.verify()
    assert (certificate.issuer, certificate.subject) == (ISSUER.entity_id, ROBOT.entity_id)
    assert (certificate.name, certificate.tags, str(certificate.subnet)) == ("rover-7", ("lidar",), "3.7")
    assert certificate.not_before < 5000 < certificate.not_after == 6000
    assert certificate.serial.to_bytes(8, "little") == INVITE.invite_id


def test_keys_issuers_and_settings_follow_the_node() -> None:
    found = granted()
    assert (found.psk, found.psk_root) == (b"m" * 32, b"r" * 32)
    assert found.trusted_issuers == (ISSUER.entity_id, b"t" * 32)
    assert (found.policy_issuers, found.secure) == ((), "auto")


@pytest.mark.parametrize(
    ("address", "settings", "shown"),
    [
        (Endpoint("10.0.0.7", 9000), {}, "10.0.0.7:9000"),
        (Endpoint("0.0.0.0", 9000), {}, ":9000"),
        (Endpoint("::", 9000), {}, ":9000"),
        (Endpoint("::1", 9000), {}, "[::1]:9000"),
        (Endpoint("0.0.0.0", 9000), {"public_address": Endpoint("203.0.113.7", 1)}, "203.0.113.7:1"),
    ],
)
def test_the_address_is_one_that_the_newcomer_can_use(address: Endpoint, settings: dict[str, Any], shown: str) -> None:
    assert granted(address, **settings).address == shown


def test_peers_are_passed_on_but_for_plain_nodes_and_the_newcomer_itself() -> None:
    other = Identity.from_seed(b"o" * 32)
    peers = (
        PeerEntry(address=Endpoint("10.0.0.8", 1), public_key=other.entity_id),
        PeerEntry(address=Endpoint("10.0.0.9", 1), public_key=ROBOT.entity_id),
        PeerEntry(address=Endpoint("10.0.0.10", 1), public_key=b"n" * 32, node_id=7),
    )
    assert granted(peers=peers).peers == (GrantedPeer("10.0.0.8:1", other.entity_id),)
    many = tuple(
        PeerEntry(address=Endpoint("10.0.0.8", number), public_key=Identity.from_seed(bytes([number]) * 32).entity_id)
        for number in range(1, MOST_PEERS + 5)
    )
    assert len(granted(peers=many).peers) == MOST_PEERS
