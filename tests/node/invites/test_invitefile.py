"""Invites on disk: private, complete, and never half read."""

import stat
from pathlib import Path

import msgspec
import pytest

from meshbus.errors import ConfigError
from meshbus.names.subnet import SubnetId
from meshbus.node.invites.invitefile import load_invites, save_invites
from meshbus.policy.invites import Invite, InviteSpec, InviteState

ODD = 'ta"g\\ \u00fc'


def invite(number: int) -> Invite:
    spec = InviteSpec(
        name=f"rover-{number}", tags=("lidar", ODD), subnet=SubnetId.parse("3.7"), approval=number % 2 == 0
    )
    return Invite(invite_id=number.to_bytes(8, "big"), psk=b"p" * 32, issuer=b"i" * 32, expires=99, spec=spec)


def test_what_is_written_is_read_in_order_and_private(tmp_path: Path) -> None:
    path = tmp_path / "id.invites.toml"
    assert load_invites(path) == []
    states = [msgspec.structs.replace(invite(9), state=state, subject=b"s" * 32) for state in InviteState]
    invites = [
        invite(2),
        invite(1),
        *(msgspec.structs.replace(one, invite_id=bytes([n] * 8)) for n, one in enumerate(states)),
    ]
    for some in (invites, invites[:1], []):
        save_invites(path, some)
        assert load_invites(path) == some
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('state = "open"', 'state = "odd"'),
        ('psk = "70', 'psk = "zz'),
        ('subnet = "3.7"', 'subnet = "3.7.x"'),
        ('name = "rover-1"', 'name = "rover 1"'),
        ("expires = 99\n", ""),
        ("[[invites]]", "[invites]"),
        ("kind", "sort"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "id.invites.toml"
    save_invites(path, [invite(1)])
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(ConfigError, match="invites"):
        load_invites(path)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "id.invites.toml"
    save_invites(path, [invite(1)])
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        load_invites(path)
