"""From configuration to the engine's settings."""

import time
from pathlib import Path
from typing import Any

import pytest

from meshbus.config.node import NodeConfig
from meshbus.engine.settings import NatConfig, OpaqueMode, PreviousKey
from meshbus.errors import LocalProtocolError
from meshbus.keyfile import MeshKey
from meshbus.node.driving.setup import engine_settings, parse_key, wall
from meshbus.wire.constants import ROUTED_PAYLOAD, Subprotocol

PSK = MeshKey(bytes(32), bytes(32))


def test_packets_are_full_on_this_machine_and_fit_a_path_elsewhere() -> None:
    assert engine_settings(NodeConfig.load(env={}, bind="127.0.0.1:0"), PSK).max_payload == ROUTED_PAYLOAD
    elsewhere = engine_settings(NodeConfig.load(env={}, bind="0.0.0.0:0"), PSK)
    assert elsewhere.max_payload == 1452 - 84
    assert not elsewhere.loopback
    assert engine_settings(NodeConfig.load(env={}, max_packet=1280), PSK).max_payload == 1280 - 84


@pytest.mark.parametrize(
    ("bind", "given", "buffer", "window"),
    [
        ("127.0.0.1:0", {}, 4 << 20, 1 << 20),  # loopback: a quarter of the buffer
        ("127.0.0.1:0", {}, 100_000, 65_536),  # never less than a plain peer gets
        ("127.0.0.1:0", {"window_bytes": 131_072}, 4 << 20, 131_072),
        ("0.0.0.0:0", {}, 4 << 20, 512 << 10),
        ("0.0.0.0:0", {}, 400_000, 100_000),
        ("0.0.0.0:0", {"window_bytes": 2 << 20}, 4 << 20, 1 << 20),
    ],
)
def test_the_window_fits_the_receive_buffer(bind: str, given: dict[str, Any], buffer: int, window: int) -> None:
    assert engine_settings(NodeConfig.load(env={}, bind=bind, **given), PSK, buffer).window == window


def test_names_of_the_configuration_reach_the_engine() -> None:
    config = NodeConfig.load(
        env={}, subnet="3.7", heartbeat_s=1, session_timeout_s=4, unknown_subprotocols="deliver", profile=False
    )
    settings = engine_settings(config, PSK)
    assert str(settings.subnet) == "3.7"
    assert (settings.liveness.heartbeat_s, settings.liveness.session_timeout_s) == (1, 4)
    assert settings.opaque is OpaqueMode.COMPATIBLE
    assert not settings.profile


def test_both_mesh_keys_reach_the_engine() -> None:
    settings = engine_settings(NodeConfig.load(env={}), PSK)
    assert (settings.psk, settings.previous_psk) == (bytes(32), None)
    settings = engine_settings(NodeConfig.load(env={}), MeshKey(b"n" * 32, b"r" * 32, b"o" * 32, 7))
    assert (settings.psk, settings.previous_psk) == (b"n" * 32, PreviousKey(b"o" * 32, 7_000_000_000))


def test_what_a_node_carries_follows_from_what_it_has(tmp_path: Path) -> None:
    assert engine_settings(NodeConfig.load(env={}), PSK).carries == {Subprotocol.REVOCATION, Subprotocol.ROTATION}
    assert engine_settings(NodeConfig.load(env={}, secure="off"), PSK).carries == frozenset()
    issuer = "ab" * 32
    config = NodeConfig.load(env={}, policy_issuers=[issuer], policy_file=tmp_path / "policy.toml")
    settings = engine_settings(config, PSK)
    assert settings.carries == {Subprotocol.POLICY, Subprotocol.REVOCATION, Subprotocol.ROTATION}
    assert settings.policy_issuers == (bytes.fromhex(issuer),)
    both = engine_settings(NodeConfig.load(env={}, daemons_dir=tmp_path, policy_issuers=[issuer], policy_file="p"), PSK)
    assert both.carries > {Subprotocol.POLICY, Subprotocol.MIGRATION}


def test_keys_are_bytes_or_hex() -> None:
    assert parse_key("ab" * 32) == parse_key(b"\xab" * 32)
    for bad in ("zz", "ab", b"short"):
        with pytest.raises(LocalProtocolError, match="public key"):
            parse_key(bad)


def test_the_wall_clock_follows_the_monotonic_one() -> None:
    now = time.monotonic()
    assert abs(wall(now) - time.time_ns()) < 10**9
    assert wall(now + 5) - wall(now) > 4 * 10**9


def test_address_settings_reach_the_engine() -> None:
    config = NodeConfig.load(env={}, public_address="203.0.113.9:9000")
    nat = engine_settings(config, PSK, bound=("10.0.0.1", 9000)).nat
    assert (nat.bind, nat.public_address) == (("10.0.0.1", 9000), ("203.0.113.9", 9000))
    assert engine_settings(NodeConfig.load(env={}), PSK).nat == NatConfig()
