"""What a newcomer writes: checked against its token, complete, private, and good for a node to start with."""

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbus.config.node import NodeConfig
from meshbus.config.policyfile import read_policy
from meshbus.config.spelling import Endpoint
from meshbus.engine.settings import SecureMode
from meshbus.errors import ConfigError, JoinError
from meshbus.keyfile import MeshKey, create_psk, load_certificate
from meshbus.names.subnet import SubnetId
from meshbus.node.invites.settling import MESH_KEY as KEY_FILE
from meshbus.node.invites.settling import Joined, Reached, identity_of, settle
from meshbus.node.peers.pinfile import load_pins
from meshbus.wire.certificate import Certificate, encode_certificate
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import Granted, GrantedPeer
from tests.node.invites.making import EVE, INVITER, ISSUER, MESH_KEY, ROBOT

TOKEN = InviteToken(b"12345678", b"s" * 16, INVITER.entity_id, ISSUER.entity_id)
CERTIFICATE = Certificate(
    issuer=ISSUER.entity_id,
    subject=ROBOT.entity_id,
    serial=1,
    not_before=1,
    not_after=2_000_000_000,
    subnet=SubnetId.parse("3.7"),
    name="rover-7",
    tags=("lidar", 'odd "tag'),
).signed_by(ISSUER)
REACHED = Reached("hub.local", "10.0.0.8", None)


def granted(**changes: Any) -> Granted:
    fields: dict[str, Any] = {"certificate": encode_certificate(CERTIFICATE), "psk": MESH_KEY, "address": ":9000"}
    return Granted(**{**fields, "trusted_issuers": (ISSUER.entity_id,), **changes})


def settled(place: Path, answer: Granted, reached: Reached = REACHED) -> tuple[Joined, NodeConfig]:
    joined = settle(place, TOKEN, ROBOT, answer, reached)
    return joined, NodeConfig.load(place, env={})


def test_a_mesh_whose_key_was_replaced_keeps_its_first_key_for_names(tmp_path: Path) -> None:
    _, config = settled(tmp_path / "node.toml", granted(psk_root=b"r" * 32))
    assert config.load_mesh_key() == MeshKey(MESH_KEY, b"r" * 32)
    _, config = settled(tmp_path / "other" / "node.toml", granted())
    assert config.load_mesh_key() == MeshKey(MESH_KEY, MESH_KEY)


def test_everything_is_written_beside_the_configuration(tmp_path: Path) -> None:
    place = tmp_path / "robot" / "node.toml"
    other = GrantedPeer("10.0.0.9:1", EVE.entity_id)
    joined, config = settled(place, granted(peers=(other, GrantedPeer("10.0.0.7:9000", INVITER.entity_id))))
    assert joined == Joined(place, ROBOT.node_id, ROBOT.entity_id, CERTIFICATE, INVITER.entity_id)
    assert (config.name, str(config.subnet), config.tags) == ("rover-7", "3.7", CERTIFICATE.tags)
    assert config.load_psk() == MESH_KEY
    assert config.identity == identity_of(place)
    assert config.trusted_issuers == (ISSUER.entity_id,)
    assert [(str(peer.address), peer.public_key) for peer in config.peers] == [
        ("hub.local:9000", INVITER.entity_id),
        ("10.0.0.9:1", EVE.entity_id),
    ]
    assert str(config.bind) == "0.0.0.0:0"
    assert config.load_certificate(ROBOT.entity_id) == CERTIFICATE
    with pytest.raises(ConfigError, match=f"and this node has {EVE.entity_id.hex()}"):
        config.load_certificate(EVE.entity_id)
    # The first session with the inviting node must be secure already: the token named its key.
    pins = config.pins_path()
    assert pins is not None
    assert load_pins(pins) == {INVITER.node_id: INVITER.entity_id}
    secret = (place, place.with_name(KEY_FILE), pins)
    assert [stat.S_IMODE(path.stat().st_mode) for path in secret] == [0o600] * 3


def test_a_fleet_with_a_signed_policy(tmp_path: Path) -> None:
    place = tmp_path / "node.toml"
    _, config = settled(place, granted(policy_issuers=(ISSUER.entity_id,), secure="require"))
    assert (config.policy_issuers, config.secure) == ((ISSUER.entity_id,), SecureMode.REQUIRE)
    assert config.trusted_issuers == ()
    assert config.policy_file is not None
    first = read_policy(config.policy_file)
    assert (first.version, first.policy.trusted_issuers) == (0, (ISSUER.entity_id,))
    assert str(first.policy.unlisted_channels) == "refuse"


def test_without_secure_sessions_nothing_is_pinned(tmp_path: Path) -> None:
    _, config = settled(tmp_path / "node.toml", granted(secure="off"))
    pins = config.pins_path()
    assert pins is not None
    assert not pins.exists()


@pytest.mark.parametrize(
    ("reached", "bind", "first"),
    [
        (Reached("127.0.0.1", "127.0.0.1", None), "127.0.0.1:0", "127.0.0.1:9000"),
        (Reached("::1", "::1", None), "[::1]:0", "[::1]:9000"),
        (Reached("2001:db8::1", "2001:db8::2", None), "[::]:0", "[2001:db8::1]:9000"),
        (Reached("hub", "10.0.0.8", Endpoint("10.0.0.8", 7)), "10.0.0.8:7", "hub:9000"),
    ],
)
def test_addresses_follow_how_the_two_reached_each_other(
    tmp_path: Path, reached: Reached, bind: str, first: str
) -> None:
    _, config = settled(tmp_path / "node.toml", granted(), reached)
    assert (str(config.bind), str(config.peers[0].address)) == (bind, first)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"issuer": EVE.entity_id}, "the issuer of the certificate must be"),
        ({"subject": EVE.entity_id}, "the subject of the certificate must be"),
        ({"name": "rover-8"}, "is not signed by its issuer"),
    ],
)
def test_a_certificate_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    wrong = msgspec.structs.replace(CERTIFICATE, **changes)
    if "name" not in changes:
        wrong = wrong.signed_by(EVE if wrong.issuer == EVE.entity_id else ISSUER)
    with pytest.raises(JoinError, match=problem) as caught:
        settle(tmp_path / "node.toml", TOKEN, ROBOT, granted(certificate=encode_certificate(wrong)), REACHED)
    assert caught.value.reason == "join_issuer"
    assert list(tmp_path.iterdir()) == []


def test_grants_that_cannot_be_used_leave_no_configuration(tmp_path: Path) -> None:
    for wrong in (granted(certificate=b"x"), granted(psk=b"short"), granted(psk_root=b"short")):
        with pytest.raises(JoinError):
            settle(tmp_path / "node.toml", TOKEN, ROBOT, wrong, REACHED)
    for wrong in (granted(secure="perhaps"), granted(address="nowhere")):
        with pytest.raises(ConfigError):
            settle(tmp_path / "node.toml", TOKEN, ROBOT, wrong, REACHED)
    assert not [path.name for path in tmp_path.iterdir() if "node.toml" in path.name]


def test_it_can_be_written_again_but_never_over_the_key_of_another_mesh(tmp_path: Path) -> None:
    place = tmp_path / "node.toml"
    for _ in range(2):
        settle(place, TOKEN, ROBOT, granted(), REACHED)
    assert load_certificate(tmp_path / "node.certificate") == CERTIFICATE
    (tmp_path / "else").mkdir()
    create_psk(tmp_path / "else" / KEY_FILE)
    with pytest.raises(ConfigError, match="is the key of another mesh"):
        settle(tmp_path / "else" / "node.toml", TOKEN, ROBOT, granted(), REACHED)
