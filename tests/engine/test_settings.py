"""What an engine offers, and the defaults it starts from."""

from __future__ import annotations

import pytest

from meshbus.engine.settings import (
    PLAIN_SERVICES,
    PROFILE_SERVICES,
    PROFILE_WINDOW,
    RELIABLE_SERVICES,
    EngineSettings,
    OpaqueMode,
    offered_services,
)
from meshbus.wire.constants import ROUTED_PAYLOAD, Subprotocol
from meshbus.wire.subprotocol import FIRST_VENDOR_ID, SubprotocolVersion


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


def test_a_node_offers_all_it_handles() -> None:
    registry = offered_services(EngineSettings(psk=bytes(32)))
    assert [descriptor.id for descriptor in registry.all_descriptors()] == sorted([*PLAIN_SERVICES, *PROFILE_SERVICES])
    assert {descriptor.version for descriptor in registry.all_descriptors()} == {SubprotocolVersion(1)}
    assert all(registry.is_handled(subprotocol_id) for subprotocol_id in (*PLAIN_SERVICES, *PROFILE_SERVICES))


def test_without_the_profile_it_is_a_plain_node() -> None:
    registry = offered_services(EngineSettings(psk=bytes(32), profile=False))
    assert not registry.is_handled(Subprotocol.NEGOTIATION)
    assert {d.id for d in registry.all_descriptors()} == set(PLAIN_SERVICES) - {Subprotocol.NEGOTIATION}
    assert "subprotocol:0x0600" not in registry.capability_tags()


def test_every_node_has_a_registry_of_its_own() -> None:
    settings = EngineSettings(psk=bytes(32))
    one, other = offered_services(settings), offered_services(settings)
    one.unregister(Subprotocol.RELIABLE)
    assert other.is_handled(Subprotocol.RELIABLE)


@pytest.mark.parametrize("subprotocol_id", PROFILE_SERVICES)
def test_the_profile_lives_in_the_vendor_range(subprotocol_id: int) -> None:
    assert subprotocol_id >= FIRST_VENDOR_ID or subprotocol_id == Subprotocol.HANDSHAKE_RELAY


def test_what_travels_on_reliable_streams_is_part_of_the_profile() -> None:
    assert set(PROFILE_SERVICES) > RELIABLE_SERVICES
    assert Subprotocol.RELIABLE not in RELIABLE_SERVICES
