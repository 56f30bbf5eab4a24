"""Authorization: the order of the checks, tokens as a reference node and as we judge them, visibility, publishing."""

from typing import Any

import msgspec
import pytest

from meshbus.engine.channels.authorize import ack_of
from meshbus.engine.session.peer import PeerClaims
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry, Visibility
from meshbus.policy.reason import Reason
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.token import PermissionToken, Scope, decode_token, encode_chain, encode_token
from tests.engine.stage import NODE, ROOT, STRANGER, UNIX, Stage, channel_config, configs, entity, token
from tests.vectors import load

VISIBILITY = load("policy")["subscribe_visibility_observed"]
OBSERVED = load("policy")["subscribe_token_observed"]["rows"]
TOKENS = load("policy")["tokens"]["rows"]
OWN_TOKEN = load("policy")["publisher_needs_own_token"]

SECRET, OTHER = ChannelName("lab/secret"), ChannelName("lab/other")
ALICE, BOB = entity(1), entity(2)
CAPABLE = CapabilityFilter(require_tags=("s",))


class Judge:
    """An authorizer with its counters at hand; options are those of a stage."""

    def __init__(self, registry: ChannelConfigRegistry | None = None, **options: Any) -> None:
        scene = Stage(registry, **options)
        self.counters, self.tokens, self.authorizer = scene.counters, scene.tokens, scene.authorizer

    def __call__(
        self, presented: bytes = b"", *, claims: PeerClaims | None = None, channel: ChannelName = SECRET, now: float = 0
    ) -> Reason | None:
        return self.authorizer.judge(PeerClaims(ALICE.entity_id) if claims is None else claims, channel, now, presented)

    def faults(self) -> dict[Reason, int]:
        """Return how often tokens were of no use, by reason."""
        counts = {reason: self.counters.get(*reason.counter) for reason in Reason if reason.what == "token"}
        return {reason: count for reason, count in counts.items() if count}


def gated(**options: Any) -> Judge:
    return Judge(configs(channel_config(SECRET, require_token=True)), **options)


# ── the order ───────────────────────────────────────────────────────────────────────────────


def test_each_refusal_has_its_reason_on_the_wire() -> None:
    expected = {
        Reason.REFUSE_THROTTLED: AckReason.RATE_LIMITED,
        Reason.REFUSE_TOO_MANY_CHANNELS: AckReason.TOO_MANY_CHANNELS,
        Reason.REFUSE_UNKNOWN_CHANNEL: AckReason.UNKNOWN_CHANNEL,
        Reason.REFUSE_NOT_VISIBLE: AckReason.UNAUTHORIZED,
        Reason.REFUSE_UNPINNED: AckReason.UNAUTHORIZED,
        Reason.REFUSE_CAPABILITY: AckReason.UNAUTHORIZED,
        Reason.REFUSE_TOKEN: AckReason.UNAUTHORIZED,
    }
    assert {refusal: ack_of(refusal) for refusal in expected} == expected


def test_without_configurations_every_peer_is_admitted() -> None:
    assert Judge()(claims=PeerClaims()) is None
    assert Judge().authorizer.lapse(PeerClaims(), SECRET, 0) is None


def test_the_first_failure_is_the_answer() -> None:
    here, elsewhere = SubnetId.new([3]), SubnetId.new([4])
    strict = channel_config(SECRET, visibility=Visibility.SUBNET_LOCAL, subscribe_caps=CAPABLE, require_token=True)
    judge = Judge(configs(strict), subnet=here)
    alice, capable = ALICE.entity_id, CapabilitySet(["s"])
    good = token(ALICE, SECRET)
    assert judge(channel=OTHER) is Reason.REFUSE_UNKNOWN_CHANNEL
    assert judge(good, claims=PeerClaims(alice, capable, elsewhere)) is Reason.REFUSE_NOT_VISIBLE
    assert judge(good, claims=PeerClaims(None, capable, here)) is Reason.REFUSE_NOT_VISIBLE
    assert gated()(good, claims=PeerClaims(None, capable, here)) is Reason.REFUSE_UNPINNED
    assert judge(good, claims=PeerClaims(alice, CapabilitySet(), here)) is Reason.REFUSE_CAPABILITY
    assert judge(claims=PeerClaims(alice, capable, here)) is Reason.REFUSE_TOKEN
    assert judge(good, claims=PeerClaims(alice, capable, here)) is None


def test_an_open_channel_checks_neither_entity_nor_token() -> None:
    judge = Judge(configs(channel_config(SECRET)))
    assert judge(b"nonsense", claims=PeerClaims()) is None
    assert judge.faults() == {}


def test_a_channel_that_only_restricts_publishers_is_open_to_subscribers() -> None:
    judge = Judge(configs(channel_config(SECRET, publish_caps=CAPABLE)))
    assert judge(claims=PeerClaims()) is None


def test_capabilities_alone_need_no_entity() -> None:
    judge = Judge(configs(channel_config(SECRET, subscribe_caps=CAPABLE)))
    assert judge(claims=PeerClaims()) is Reason.REFUSE_CAPABILITY
    assert judge(claims=PeerClaims(None, CapabilitySet(["s"]))) is None


def test_visibility_decides_as_observed() -> None:
    assert len(VISIBILITY["rows"]) == 144
    for publisher, peer, visibility, accepted, reason in VISIBILITY["rows"]:
        judge = Judge(
            configs(channel_config(SECRET, visibility=visibility)),
            subnet=SubnetId.new(publisher),
            unannounced_global=True,
        )
        # A 0.23 node counts a peer that never announced itself as a member of GLOBAL.
        claims = PeerClaims() if isinstance(peer, str) else PeerClaims(ALICE.entity_id, subnet=SubnetId.new(peer))
        refusal = judge(claims=claims)
        assert (refusal is None) == accepted, (publisher, peer, visibility)
        assert (AckReason.NONE if refusal is None else ack_of(refusal)).name.lower() == reason


@pytest.mark.parametrize("visibility", Visibility)
@pytest.mark.parametrize("here", [SubnetId.GLOBAL, SubnetId.new([3])])
def test_a_peer_that_never_announced_has_no_subnet(visibility: Visibility, here: SubnetId) -> None:
    judge = Judge(configs(channel_config(SECRET, visibility=visibility)), subnet=here)
    refusal = None if visibility is Visibility.GLOBAL else Reason.REFUSE_NOT_VISIBLE
    assert judge(claims=PeerClaims()) is refusal


# ── tokens as observed, where anyone may issue ──────────────────────────────────────────────


def tampered(token_bytes: bytes, at: int) -> bytes:
    return token_bytes[:at] + bytes((token_bytes[at] ^ 1,)) + token_bytes[at + 1 :]


def zero_hash() -> bytes:
    unsigned = msgspec.structs.replace(decode_token(token(ALICE, SECRET, issuer=STRANGER)), channel_hash=0)
    return encode_token(msgspec.structs.replace(unsigned, signature=STRANGER.sign(unsigned.signed_bytes)))


FOREIGN: dict[str, bytes] = {
    "no token": b"",
    "garbage 169 bytes": bytes(169),
    "short garbage": b"garbage",
    "valid SUBSCRIBE, issuer unrelated to publisher": token(ALICE, SECRET, issuer=STRANGER),
    "valid SUBSCRIBE, self-issued (issuer==subject==subscriber)": token(ALICE, SECRET, issuer=ALICE),
    "issued by publisher": token(ALICE, SECRET, issuer=NODE),
    "scope PUBLISH only": token(ALICE, SECRET, Scope.PUBLISH, issuer=STRANGER),
    "scope ADMIN only": token(ALICE, SECRET, Scope.ADMIN, issuer=STRANGER),
    "scope ALL": token(ALICE, SECRET, Scope.ALL, issuer=STRANGER),
    "scope WILDCARD only": token(ALICE, SECRET, Scope.WILDCARD, issuer=STRANGER),
    "expired": token(ALICE, SECRET, issuer=STRANGER, now=-1000),
    "not yet valid (+60 s)": token(ALICE, SECRET, issuer=STRANGER, now=60),
    "wrong subject": token(BOB, SECRET, issuer=STRANGER),
    "wrong channel": token(ALICE, OTHER, issuer=STRANGER),
    "channel_hash 0 without WILDCARD": zero_hash(),
    "tampered scope": tampered(token(ALICE, SECRET, issuer=STRANGER), 64),
    "161-byte seed-era token": bytes(161),
    "generation 0xffffffff": token(ALICE, SECRET, issuer=STRANGER, generation=0xFFFFFFFF),
    "SUBSCRIBE|WILDCARD with foreign channel_hash": token(
        ALICE, OTHER, Scope.SUBSCRIBE | Scope.WILDCARD, issuer=STRANGER
    ),
}


def test_tokens_decide_as_observed_where_anyone_may_issue() -> None:
    for row in OBSERVED:
        judge, case = gated(any_issuer=True), row["case"]
        if "never announced" in case:
            refusal = judge(b"" if case.startswith("no token") else token(ALICE, SECRET), claims=PeerClaims())
        elif "already in the publisher's cache" in case:
            assert judge(FOREIGN["SUBSCRIBE|WILDCARD with foreign channel_hash"]) is None
            refusal = judge()
        else:
            refusal = judge(FOREIGN[case])
        assert (refusal is None) == row["accepted"], case
        assert (AckReason.NONE if refusal is None else ack_of(refusal)).name.lower() == row["reason"]


# ── tokens as we judge them ─────────────────────────────────────────────────────────────────


def small_order() -> tuple[bytes, PeerClaims]:
    (row,) = [row for row in TOKENS if row["case"] == "forged_small_order_issuer"]
    return bytes.fromhex(row["hex"]), PeerClaims(bytes.fromhex(row["subject"]))


@pytest.mark.parametrize(
    ("presented", "fault"),
    [
        (b"short", Reason.TOKEN_MALFORMED),
        (bytes(161), Reason.TOKEN_MALFORMED),
        (token(ALICE, SECRET, issuer=ALICE), Reason.TOKEN_UNTRUSTED),
        (token(ALICE, SECRET, issuer=STRANGER), Reason.TOKEN_UNTRUSTED),
        (token(BOB, SECRET), Reason.TOKEN_WRONG_SUBJECT),
        (token(NODE, SECRET, Scope.PUBLISH, issuer=STRANGER), Reason.TOKEN_WRONG_SUBJECT),
        (token(ALICE, SECRET, Scope.PUBLISH), Reason.TOKEN_WRONG_SCOPE),
        (token(ALICE, OTHER), Reason.TOKEN_WRONG_SCOPE),
        (token(ALICE, SECRET, now=-1000), Reason.TOKEN_EXPIRED),
        (token(ALICE, SECRET, now=60), Reason.TOKEN_NOT_YET_VALID),
        (tampered(token(ALICE, SECRET), 100), Reason.TOKEN_BAD_SIGNATURE),
    ],
)
def test_an_unusable_token_counts_as_none_with_its_reason(presented: bytes, fault: Reason) -> None:
    judge = gated()
    assert judge(presented) is Reason.REFUSE_TOKEN
    assert judge.faults() == {fault: 1}
    assert len(judge.tokens) == 0


def test_a_small_order_issuer_forges_nothing() -> None:
    presented, claims = small_order()
    forged = decode_token(presented)
    for any_issuer in (False, True):
        judge = gated(any_issuer=any_issuer)
        judge.tokens.trusted_issuers = frozenset({forged.issuer})
        anywhere = msgspec.structs.replace(forged, channel_hash=SECRET.hash)
        assert judge(encode_token(anywhere), claims=claims) is Reason.REFUSE_TOKEN
        assert judge.faults() == {Reason.TOKEN_BAD_SIGNATURE: 1}


def test_a_revoked_token_is_not_accepted_when_presented() -> None:
    judge = gated()
    judge.tokens.revoke_below(ROOT.entity_id, 1)
    assert judge(token(ALICE, SECRET)) is Reason.REFUSE_TOKEN
    assert judge.faults() == {Reason.TOKEN_REVOKED: 1}
    assert judge(token(ALICE, SECRET, generation=1)) is None


def test_a_good_token_is_kept_and_serves_without_being_presented_again() -> None:
    judge = gated()
    assert judge(token(ALICE, SECRET)) is None
    assert judge() is None
    assert judge(now=1000) is Reason.REFUSE_TOKEN, "its time is over"


def test_a_longer_token_is_kept_beside_one_that_still_holds() -> None:
    judge = gated()
    assert judge(token(ALICE, SECRET, ttl_s=10)) is None
    assert judge(token(ALICE, SECRET, ttl_s=1000)) is None
    assert judge(now=500) is None


def test_a_bad_token_does_not_replace_a_kept_one() -> None:
    judge = gated()
    assert judge(token(ALICE, SECRET)) is None
    for bad in (b"x", token(ALICE, SECRET, now=-1000), token(ALICE, SECRET, issuer=STRANGER), token(BOB, SECRET)):
        assert judge(bad) is None
    assert len(judge.tokens) == 1


def test_no_token_is_kept_for_a_channel_that_needs_none() -> None:
    planted = token(ALICE, SECRET)
    for config in (channel_config(SECRET), channel_config(SECRET, subscribe_caps=CAPABLE)):
        judge = Judge(configs(config))
        assert judge(planted, claims=PeerClaims(ALICE.entity_id, CapabilitySet(["s"]))) is None
        assert len(judge.tokens) == 0


def test_a_chain_from_a_trusted_root_opens_the_channel() -> None:
    parent = PermissionToken.issue(
        ROOT, BOB.entity_id, Scope.SUBSCRIBE | Scope.DELEGATE, SECRET,
        ttl_s=1000, now=UNIX, entropy=bytes, delegation_depth=1,
    )  # fmt: skip
    child = parent.delegate(BOB, ALICE.entity_id, Scope.SUBSCRIBE, now=UNIX, entropy=bytes)
    judge = gated()
    assert judge(encode_chain([child])) is Reason.REFUSE_TOKEN
    assert judge.faults() == {Reason.TOKEN_UNTRUSTED: 1}
    assert judge(encode_chain([parent, child])) is None


def test_a_prefix_rule_checks_the_requested_name() -> None:
    registry = ChannelConfigRegistry()
    registry.insert_prefix("lab/", channel_config("lab/any", require_token=True))
    judge = Judge(registry)
    assert judge(token(ALICE, "lab/any")) is Reason.REFUSE_TOKEN
    assert judge(token(ALICE, SECRET)) is None
    assert judge(channel=OTHER) is Reason.REFUSE_TOKEN


def test_a_token_proven_once_serves_many_channels() -> None:
    registry = configs(channel_config(SECRET, require_token=True), channel_config(OTHER, require_token=True))
    judge = Judge(registry)
    alice = PeerClaims(ALICE.entity_id)
    every = token(ALICE, None, Scope.SUBSCRIBE | Scope.WILDCARD)
    presented = judge.authorizer.present(alice, every)
    assert presented is not None
    for channel in (SECRET, OTHER):
        assert judge.authorizer.judge(alice, channel, 0, presented) is None
    for useless in (b"", b"x", token(BOB, SECRET), token(ALICE, SECRET, issuer=STRANGER)):
        assert judge.authorizer.present(alice, useless) is None
    assert judge.faults() == {Reason.TOKEN_MALFORMED: 1, Reason.TOKEN_UNTRUSTED: 1, Reason.TOKEN_WRONG_SUBJECT: 1}


# ── again ───────────────────────────────────────────────────────────────────────────────────


def test_what_was_granted_lapses_with_token_capabilities_or_configuration() -> None:
    judge = Judge(configs(channel_config(SECRET, subscribe_caps=CAPABLE, require_token=True)))
    capable, incapable = PeerClaims(ALICE.entity_id, CapabilitySet(["s"])), PeerClaims(ALICE.entity_id)
    lapse = judge.authorizer.lapse
    assert lapse(capable, SECRET, 0) is Reason.LAPSE_TOKEN
    assert judge(token(ALICE, SECRET), claims=capable) is None
    assert lapse(capable, SECRET, 0) is None
    assert lapse(incapable, SECRET, 0) is Reason.LAPSE_CAPABILITY
    assert lapse(capable, SECRET, 1000) is Reason.LAPSE_TOKEN
    assert lapse(capable, OTHER, 0) is Reason.LAPSE_UNKNOWN_CHANNEL
    judge.tokens.revoke_below(ROOT.entity_id, 1)
    assert lapse(capable, SECRET, 0) is Reason.LAPSE_TOKEN


def test_visibility_suspends_and_does_not_lapse() -> None:
    judge = Judge(configs(channel_config(SECRET, visibility=Visibility.SUBNET_LOCAL)), subnet=SubnetId.new([3]))
    away = PeerClaims(ALICE.entity_id, subnet=SubnetId.new([4]))
    assert judge.authorizer.lapse(away, SECRET, 0) is None
    assert not judge.authorizer.sees(away, judge.authorizer.config_of(SECRET))


def test_a_channel_without_configuration_is_as_visible_as_the_default() -> None:
    judge = Judge(subnet=SubnetId.new([3]))
    away = PeerClaims(ALICE.entity_id, subnet=SubnetId.new([4]))
    assert judge.authorizer.sees(away, None)
    judge.authorizer.default_visibility = Visibility.SUBNET_LOCAL
    assert not judge.authorizer.sees(away, None)


# ── publishing ──────────────────────────────────────────────────────────────────────────────


def test_a_publisher_needs_a_token_of_its_own_as_observed() -> None:
    judge = gated(any_issuer=True)
    subscribe = judge(token(ALICE, SECRET))
    assert (subscribe is None) == OWN_TOKEN["subscribe"]["accepted"]
    assert "denied" in OWN_TOKEN["publish_outcome"]
    assert not judge.authorizer.can_publish_locally(SECRET, 0)
    judge.tokens.insert(decode_token(token(NODE, SECRET, Scope.PUBLISH, issuer=NODE)))
    assert judge.authorizer.can_publish_locally(SECRET, 0)
    assert not judge.authorizer.can_publish_locally(SECRET, 1000)


def test_a_publisher_needs_the_capabilities_it_announced() -> None:
    judge = Judge(configs(channel_config(SECRET, publish_caps=CapabilityFilter(require_tags=("p",)))))
    assert not judge.authorizer.can_publish_locally(SECRET, 0)
    judge.authorizer.own = PeerClaims(NODE.entity_id, CapabilitySet(["p"]))
    assert judge.authorizer.can_publish_locally(SECRET, 0)


def test_a_channel_that_is_not_configured_may_be_published() -> None:
    assert Judge().authorizer.can_publish_locally(SECRET, 0)
    assert Judge(configs()).authorizer.can_publish_locally(SECRET, 0)


def test_expired_tokens_are_evicted_by_the_wall_clock() -> None:
    judge = gated()
    judge(token(ALICE, SECRET, ttl_s=10))
    assert judge.authorizer.evict_expired(9) == 0
    assert judge.authorizer.evict_expired(10) == 1
