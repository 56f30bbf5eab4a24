"""The defaults that an engine starts from."""

from __future__ import annotations

import pytest

from meshbus.engine.settings import PROFILE_WINDOW, EngineSettings, LivenessConfig, OpaqueMode
from meshbus.wire.constants import HANDSHAKE_TTL, ROUTED_PAYLOAD, ROUTED_TTL


def test_the_defaults_are_the_safe_ones() -> None:
    settings = EngineSettings(psk=bytes(32))
    assert settings.opaque is OpaqueMode.STRICT
    assert not settings.any_issuer
    assert settings.trusted_issuers == ()
    assert settings.token_sweep_s == 30.0
    assert settings.max_channels_per_peer == 1024
    assert settings.ack_timeout_s == 5.0
    assert (settings.window, settings.max_payload) == (PROFILE_WINDOW, ROUTED_PAYLOAD)
    assert settings.directory.require_signed
    assert settings.announce.enrich
    assert settings.profile


@pytest.mark.parametrize(
    ("radius", "ttl"), [(1, ROUTED_TTL), (ROUTED_TTL, ROUTED_TTL), (ROUTED_TTL + 1, HANDSHAKE_TTL)]
)
def test_packets_of_relayed_sessions_go_as_far_as_pingwaves(radius: int, ttl: int) -> None:
    assert LivenessConfig(radius=radius).routed_ttl == ttl
    assert LivenessConfig().routed_ttl == ROUTED_TTL
