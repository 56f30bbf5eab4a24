"""Channel configurations: validation, lookup, visibility as observed, and permissions."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import AuthError, ChannelError, ConfigError, RemoteProtocolError
from meshbus.names.channel import ChannelName, hash_name
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import LevelPolicy, LevelRule
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility, visible
from meshbus.policy.tokens import TokenCache
from meshbus.wire.messages.token import PermissionToken, Scope, decode_token, encode_token
from tests.vectors import load

LOOKUP = load("policy")["config_registry_prefix_lookup"]
GATE = load("policy")["subnet_visible_gate"]["rows"]
OBSERVED_GATE = load("policy")["subscribe_visibility_observed"]
OBSERVED_TOKENS = load("policy")["subscribe_token_observed"]["rows"]
COLLISION = load("policy")["wire_hash_collisions"]["pairs"][0]

ALICE, BOB, PUBLISHER, STRANGER = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3, 4))
NOBODY = CapabilitySet()
NOW = 5_000.0


def config(name: str = "lab/secret", **options: Any) -> ChannelConfig:
    return ChannelConfig(name=ChannelName(name), **options)


# ── configuration ───────────────────────────────────────────────────────────────────────────


def test_the_defaults() -> None:
    default = config()
    assert default.visibility is Visibility.GLOBAL
    assert (default.publish_caps, default.subscribe_caps, default.max_rate_pps) == (None, None, None)
    assert (default.require_token, default.reliable, default.priority) == (False, False, 0)
    assert default.is_open


@pytest.mark.parametrize(
    "options",
    [{"publish_caps": CapabilityFilter()}, {"subscribe_caps": CapabilityFilter()}, {"require_token": True}],
    ids=str,
)
def test_asking_for_anything_closes_a_channel(options: dict[str, Any]) -> None:
    assert not config(**options).is_open


def test_text_is_taken_for_names_and_visibility() -> None:
    made = ChannelConfig(name="a/b", visibility="parent-visible")  # type: ignore[arg-type]
    assert made.name.hash == hash_name("a/b")
    assert made.visibility is Visibility.PARENT_VISIBLE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"visibility": "public"},
            "visibility: unknown value 'public'; choose from subnet-local, parent-visible, exported, global",
        ),
        ({"priority": 256}, r"priority: must be in \[0, 255\], got 256"),
        ({"priority": -1}, r"priority: must be in \[0, 255\], got -1"),
        ({"max_rate_pps": 0}, r"max_rate_pps: must be in \[1, 4294967295\], got 0"),
        ({"max_rate_pps": 1 << 32}, "max_rate_pps"),
    ],
)
def test_bad_values_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**options)


def test_the_extremes_are_allowed() -> None:
    assert config(priority=255, max_rate_pps=1).priority == 255
    assert config(max_rate_pps=0xFFFFFFFF).max_rate_pps == 0xFFFFFFFF


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(ChannelError):
        ChannelConfig(name="A")  # type: ignore[arg-type]


# ── registry ────────────────────────────────────────────────────────────────────────────────


def test_lookup_by_name_prefers_the_exact_entry_then_the_longest_prefix() -> None:
    registry = ChannelConfigRegistry()
    for prefix in LOOKUP["prefixes"]:
        registry.insert_prefix(prefix, config(prefix))
    for name in LOOKUP["exact"]:
        registry.insert(config(name, priority=7))
    for row in LOOKUP["rows"]:
        found = registry.get_by_name(row["name"])
        if row["resolves_to"] is None:
            assert found is None, row
        else:
            assert found is not None, row
            assert found.name == row["resolves_to"].removeprefix("exact:")
            assert (found.priority == 7) == row["resolves_to"].startswith("exact:")


@given(
    st.lists(st.text("ab/", max_size=4), max_size=6), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
    st.text("ab/", max_size=6),
)  # fmt: skip
def test_lookup_equals_a_scan(prefixes: list[str], names: list[str], asked: str) -> None:
    registry = ChannelConfigRegistry()
    kept: dict[str, ChannelConfig] = {}
    for number, prefix in enumerate(prefixes):
        try:
            registry.insert_prefix(prefix, config(f"p{number}"))
        except ChannelError:
            continue
        kept[prefix] = config(f"p{number}")
    for name in names:
        registry.insert(config(name))
    fitting = [prefix for prefix in kept if asked.startswith(prefix)]
    expected = config(asked) if asked in names else kept[max(fitting, key=len)] if fitting else None
    assert registry.get_by_name(asked) == expected


def test_a_prefix_is_something_a_name_can_start_with() -> None:
    registry = ChannelConfigRegistry()
    registry.insert_prefix("", config("all"))
    registry.insert_prefix("sensors/", config("some"))
    assert registry.get_by_name("x") == config("all")
    assert registry.get_by_name("sensors/x") == config("some")
    for prefix in ("/", "a//", "A", "a b"):
        with pytest.raises(ChannelError):
            registry.insert_prefix(prefix, config())
    assert registry.remove_prefix("sensors/") == config("some")
    assert registry.remove_prefix("sensors/") is None
    assert registry.get_by_name("sensors/x") == config("all")


def test_lookup_by_hash_finds_one_channel_or_none() -> None:
    registry = ChannelConfigRegistry()
    one, other = config(COLLISION["a"], priority=3), config(COLLISION["b"])
    wire_hash = int(COLLISION["wire_u16"], 16)
    registry.insert(one)
    registry.insert_prefix("coll/", config("coll/333", priority=9))
    assert registry.get(one.name.hash) == one
    assert registry.get_by_wire_hash(wire_hash) == one
    assert registry.priority(one.name.hash) == 3
    assert registry.priority(other.name.hash) == 0
    registry.insert(other)
    assert registry.get_by_wire_hash(wire_hash) is None, "two channels share the hash"
    assert registry.get(one.name.hash) == one
    registry.remove_by_name(COLLISION["b"])
    assert registry.get_by_wire_hash(wire_hash) == one
    assert registry.get(5) is None
    assert registry.get_by_wire_hash(5) is None


def test_inserting_again_replaces_and_stays_unambiguous() -> None:
    registry = ChannelConfigRegistry()
    first, second = config(priority=1), config(priority=2)
    assert registry.insert(first) is None
    assert registry.insert(second) == first
    assert registry.get(first.name.hash) == registry.get_by_wire_hash(first.name.wire_hash) == second
    assert list(registry) == [second]
    assert len(registry) == 1


def test_a_canonical_collision_is_neither_found_nor_removed_by_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.names.channel.hash_name", lambda _name: 7)
    registry = ChannelConfigRegistry()
    registry.insert(config("a"))
    registry.insert(config("b"))
    assert registry.get(7) is None
    assert registry.remove(7) is None
    assert len(registry) == 2
    assert registry.remove_by_name("a") == config("a")
    assert registry.remove(7) == config("b")
    assert len(registry) == 0
    assert registry.remove_by_name("a") is None


def test_every_change_grows_the_version_and_nothing_else_does() -> None:
    registry = ChannelConfigRegistry()
    versions = [registry.version]
    changes: list[Callable[[], object]] = [
        lambda: registry.insert(config("a")),
        lambda: registry.insert(config("a", priority=1)),
        lambda: registry.insert_prefix("p", config("a")),
        lambda: registry.remove_prefix("p"),
        lambda: registry.remove_by_name("a"),
    ]
    for change in changes:
        change()
        versions.append(registry.version)
    assert versions == [0, 1, 2, 3, 4, 5]
    registry.remove_by_name("a")
    registry.remove_prefix("p")
    registry.remove(1)
    registry.get_by_name("a")
    assert registry.version == 5


# ── visibility ──────────────────────────────────────────────────────────────────────────────


def test_visibility_towards_a_peer() -> None:
    assert len(GATE) == 40
    for visibility, relation, source, dest, expected in GATE:
        kind = Visibility(visibility.replace("_", "-"))
        assert visible(kind, int(source, 16), int(dest, 16)) == expected, (visibility, relation)


def test_visibility_as_the_reference_decided_with_its_own_policy() -> None:
    policy = LevelPolicy(rules=tuple(LevelRule(**rule) for rule in OBSERVED_GATE["policy"]["rules"]))
    assert len(OBSERVED_GATE["rows"]) == 144
    for publisher, peer, visibility, accepted, reason in OBSERVED_GATE["rows"]:
        levels = [] if isinstance(peer, str) else peer
        subnet = policy.assign(f"l{n}:{level}" for n, level in enumerate(levels) if level)
        assert subnet == SubnetId.new(levels)
        assert visible(Visibility(visibility), SubnetId.new(publisher), subnet) == accepted, (
            publisher,
            peer,
            visibility,
        )
        assert reason == ("none" if accepted else "unauthorized")


# ── permission ──────────────────────────────────────────────────────────────────────────────


class Tokens:
    """Holds tokens for a list of (subject, action, channel hash)."""

    def __init__(self, *held: tuple[bytes, int, int]) -> None:
        self.held = held

    def check(self, subject: bytes, action: int, channel: str | int, now: float) -> bool:
        return now == NOW and isinstance(channel, str) and (subject, action, hash_name(channel)) in self.held


def test_every_node_may_use_an_open_channel() -> None:
    assert config().can_publish("lab/secret", NOBODY, None, None, NOW)
    assert config().can_subscribe("lab/secret", NOBODY, None, None, NOW)


def test_capabilities_are_asked_for_separately() -> None:
    made = config(
        publish_caps=CapabilityFilter(require_tags=("p",)), subscribe_caps=CapabilityFilter(require_tags=("s",))
    )
    for tags, may_publish, may_subscribe in [([], 0, 0), (["p"], 1, 0), (["s"], 0, 1), (["p", "s"], 1, 1)]:
        assert made.can_publish("lab/secret", CapabilitySet(tags), None, None, NOW) == bool(may_publish)
        assert made.can_subscribe("lab/secret", CapabilitySet(tags), None, None, NOW) == bool(may_subscribe)


def test_a_token_is_asked_for_beside_the_capabilities() -> None:
    made = config(require_token=True, subscribe_caps=CapabilityFilter(require_tags=("s",)))
    capable, alice = CapabilitySet(["s"]), ALICE.entity_id
    tokens = Tokens((alice, Scope.SUBSCRIBE, hash_name("lab/secret")))
    assert made.can_subscribe("lab/secret", capable, alice, tokens, NOW)
    assert not made.can_subscribe("lab/secret", NOBODY, alice, tokens, NOW)
    assert not made.can_subscribe("lab/secret", capable, BOB.entity_id, tokens, NOW)
    assert not made.can_subscribe("lab/secret", capable, None, tokens, NOW)
    assert not made.can_subscribe("lab/secret", capable, alice, None, NOW)
    assert not made.can_publish("lab/secret", capable, alice, tokens, NOW)


def test_behind_a_prefix_the_name_that_was_asked_for_is_judged() -> None:
    registry = ChannelConfigRegistry()
    registry.insert_prefix("lab/", config("lab/any", require_token=True))
    found = registry.get_by_name("lab/one")
    assert found is not None
    alice = ALICE.entity_id
    tokens = Tokens((alice, Scope.PUBLISH, hash_name("lab/one")))
    assert found.can_publish("lab/one", NOBODY, alice, tokens, NOW)
    assert not found.can_publish("lab/two", NOBODY, alice, tokens, NOW)
    assert not found.can_publish("lab/any", NOBODY, alice, tokens, NOW)


# ── tokens presented with a subscribe, as observed at a reference node ──────────────────────


def issue(issuer: Identity, scope: int = Scope.SUBSCRIBE, channel: str | None = "lab/secret", **options: Any) -> bytes:
    changes = options.pop("changes", {})
    subject = options.pop("subject", ALICE)
    times = {"now": NOW, "ttl_s": 100, **options}
    token = PermissionToken.issue(issuer, subject.entity_id, scope, channel, entropy=bytes, **times)
    unsigned = msgspec.structs.replace(token, **changes)
    signature = issuer.sign(unsigned.signed_bytes)
    return encode_token(msgspec.structs.replace(unsigned, signature=signature))


TAMPERED = bytearray(issue(STRANGER))
TAMPERED[64] ^= 1
PRESENTED: dict[str, bytes] = {
    "no token": b"",
    "garbage 169 bytes": bytes(169),
    "short garbage": b"garbage",
    "valid SUBSCRIBE, issuer unrelated to publisher": issue(STRANGER),
    "valid SUBSCRIBE, self-issued (issuer==subject==subscriber)": issue(ALICE),
    "issued by publisher": issue(PUBLISHER),
    "scope PUBLISH only": issue(STRANGER, Scope.PUBLISH),
    "scope ADMIN only": issue(STRANGER, Scope.ADMIN),
    "scope ALL": issue(STRANGER, Scope.ALL),
    "scope WILDCARD only": issue(STRANGER, Scope.WILDCARD),
    "expired": issue(STRANGER, now=NOW - 100),
    "not yet valid (+60 s)": issue(STRANGER, now=NOW + 60),
    "wrong subject": issue(STRANGER, subject=BOB),
    "wrong channel": issue(STRANGER, channel="lab/other"),
    "channel_hash 0 without WILDCARD": issue(STRANGER, changes={"channel_hash": 0}),
    "tampered scope": bytes(TAMPERED),
    "161-byte seed-era token": bytes(161),
    "generation 0xffffffff": issue(STRANGER, generation=0xFFFFFFFF),
    "SUBSCRIBE|WILDCARD with foreign channel_hash": issue(STRANGER, Scope.SUBSCRIBE | Scope.WILDCARD, "lab/other"),
}


def decide(token: bytes, shared: TokenCache, entity: bytes | None = ALICE.entity_id) -> bool:
    """Check as a publisher does: first with the presented token alone, then with the tokens that it already has."""
    scratch = TokenCache(shared.trusted_issuers, any_issuer=shared.any_issuer)
    with suppress(AuthError, RemoteProtocolError):  # a token that cannot be read or believed is no token
        scratch.insert(decode_token(token))
    gated = config(require_token=True)
    return any(gated.can_subscribe("lab/secret", NOBODY, entity, cache, NOW) for cache in (scratch, shared))


def test_tokens_decide_as_observed_when_anyone_may_issue() -> None:
    empty = TokenCache(any_issuer=True)
    holds_wildcard = TokenCache(any_issuer=True)
    holds_wildcard.insert(decode_token(PRESENTED["SUBSCRIBE|WILDCARD with foreign channel_hash"]))
    for row in OBSERVED_TOKENS:
        case = row["case"]
        if "never announced" in case:
            found = decide(b"" if case.startswith("no token") else issue(STRANGER), empty, entity=None)
        elif "already in the publisher's cache" in case:
            found = decide(b"", holds_wildcard)
        else:
            found = decide(PRESENTED[case], empty)
        assert found == row["accepted"], case


def test_only_tokens_of_trusted_issuers_open_a_channel_by_default() -> None:
    shared = TokenCache([PUBLISHER.entity_id])
    assert {case for case, token in PRESENTED.items() if decide(token, shared)} == {"issued by publisher"}
    trusting = TokenCache([PUBLISHER.entity_id, STRANGER.entity_id])
    observed = {row["case"] for row in OBSERVED_TOKENS if row["accepted"] and row["case"] in PRESENTED}
    self_issued = {case for case in observed if "self-issued" in case}
    assert {case for case, token in PRESENTED.items() if decide(token, trusting)} == observed - self_issued


def test_the_default_applies_where_nothing_else_does_and_is_no_rule() -> None:
    registry = ChannelConfigRegistry()
    registry.insert(config("own"))
    registry.insert_prefix("lab/", config("lab/any"))
    before = registry.version
    registry.default = config("rest")
    assert registry.version > before
    assert [registry.get_by_name(name) for name in ("own", "lab/a", "else")] == [
        config("own"), config("lab/any"), config("rest"),
    ]  # fmt: skip
    assert registry.rule_of("else") is None
    assert registry.rule_of("lab/a") == config("lab/any")
    assert (dict(registry.prefixes), registry.default) == ({"lab/": config("lab/any")}, config("rest"))


def test_publishers_are_restricted_by_capabilities_or_a_token() -> None:
    some = CapabilityFilter(require_tags=("x",))
    assert not config("a", subscribe_caps=some).restricts_publishers
    assert config("a", publish_caps=some).restricts_publishers
    assert config("a", require_token=True).restricts_publishers
