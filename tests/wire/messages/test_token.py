"""Permission tokens: golden bytes, the same bytes as the reference when issued and delegated, and its verdicts."""

import random
from typing import Any

import msgspec
import net
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbus.errors import AuthError, AuthFault, ChannelError, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import Identity
from meshbus.wire.messages.token import (
    MAX_CHAIN,
    TOKEN_BYTES,
    PermissionToken,
    Scope,
    count_chain,
    decode_chain,
    decode_token,
    encode_chain,
    encode_token,
)
from tests.fuzz import assert_survives
from tests.vectors import load

TOKENS = load("policy")["tokens"]
DELEGATIONS = load("policy")["delegation"]
AUTHORIZES = load("policy")["token_authorizes"]["rows"]

ROOT, ALICE, BOB, EVE = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 7, 3))
CHANNEL = "sensors/lidar"
FAULTS = {"invalid_signature": AuthFault.BAD_SIGNATURE}

u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
tokens = st.builds(
    PermissionToken,
    issuer=st.binary(min_size=32, max_size=32),
    subject=st.binary(min_size=32, max_size=32),
    scope=u32, channel_hash=u64, issuer_generation=u32, not_before=u64, not_after=u64, delegation_depth=u8, nonce=u64,
    signature=st.binary(min_size=64, max_size=64),
)  # fmt: skip


def issue(scope: int = Scope.SUBSCRIBE, **changes: Any) -> PermissionToken:
    options = {"ttl_s": 100, "now": 1000.0, "entropy": random.Random(0).randbytes, **changes}
    channel = options.pop("channel", CHANNEL)
    return PermissionToken.issue(options.pop("issuer", ROOT), ALICE.entity_id, scope, channel, **options)


def entropy_of(nonce: int) -> Any:
    return lambda size: nonce.to_bytes(size, "little")


def fault_of(action: Any) -> AuthFault | None:
    try:
        action()
    except AuthError as error:
        return error.fault
    return None


# ── bytes ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", TOKENS["rows"], ids=lambda row: row["case"])
def test_golden_tokens(row: dict[str, Any]) -> None:
    raw = bytes.fromhex(row["hex"])
    token = decode_token(raw)
    assert len(raw) == row["len"] == TOKENS["wire_size"] == TOKEN_BYTES
    assert token.signed_bytes == raw[: TOKENS["signed_prefix"]]
    assert encode_token(token) == raw
    assert token.issuer.hex() == row["issuer"]
    assert token.subject.hex() == row["subject"]
    assert token.scope == row["scope_bits"]
    assert token.channel_hash == int(row["channel_hash"], 16)
    assert token.issuer_generation == row["issuer_generation"]
    assert (token.not_before, token.not_after) == (row["not_before"], row["not_after"])
    assert token.delegation_depth == row["delegation_depth"]
    assert token.nonce == int(row["nonce"], 16)
    assert token.has_good_signature() == row["verify"] == net.verify_token(raw)
    assert token.expired(load("policy")["meta"]["generated_unix"] - 600) == row["expired_at_generation_time"]
    names = [name for name in ("publish", "subscribe", "admin", "delegate") if token.allows(Scope[name.upper()])]
    assert names == row["scope_names_from_reference"]


@pytest.mark.parametrize("row", TOKENS["bad_lengths"], ids=lambda row: row["case"])
def test_other_lengths_are_no_tokens(row: dict[str, Any]) -> None:
    with pytest.raises(MalformedPacket):
        decode_token(bytes(row["len"]))


@given(tokens)
@settings(max_examples=50)
def test_tokens_round_trip_and_the_reference_reads_the_same(token: PermissionToken) -> None:
    raw = encode_token(token)
    assert decode_token(raw) == token
    theirs = net.parse_token(raw)
    assert (theirs["issuer"], theirs["subject"], theirs["signature"]) == (token.issuer, token.subject, token.signature)
    assert theirs["channel_hash"] == token.channel_hash
    assert (theirs["not_before"], theirs["not_after"]) == (token.not_before, token.not_after)
    assert (theirs["delegation_depth"], theirs["nonce"]) == (token.delegation_depth, token.nonce)


def test_hostile_bytes_are_refused_or_read() -> None:
    assert_survives(decode_token, [bytes.fromhex(row["hex"]) for row in TOKENS["rows"][:2]])


@pytest.mark.parametrize(
    "changes",
    [{"issuer": b"short"}, {"subject": bytes(33)}, {"signature": b""}, {"scope": 1 << 32}, {"nonce": -1}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_does_not_fit_is_not_written(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_token(msgspec.structs.replace(issue(), **changes))


def test_reading_hostile_scopes_does_not_grow_the_enum() -> None:
    known = len(Scope._value2member_map_)
    for bits in range(1 << 8, 1 << 12):
        decode_token(encode_token(msgspec.structs.replace(issue(), scope=bits))).authorizes(Scope.PUBLISH, 5)
    assert len(Scope._value2member_map_) == known


# ── issuing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", TOKENS["rows"][:2], ids=lambda row: row["case"])
def test_issuing_gives_the_bytes_of_the_reference(row: dict[str, Any]) -> None:
    token = issue(
        row["scope_bits"],
        now=row["not_before"] + 0.9,
        ttl_s=row["not_after"] - row["not_before"],
        entropy=entropy_of(int(row["nonce"], 16)),
        delegation_depth=row["delegation_depth"],
    )
    assert encode_token(token).hex() == row["hex"]


def test_a_token_is_for_one_channel_or_explicitly_for_all() -> None:
    everywhere = issue(Scope.PUBLISH | Scope.WILDCARD, channel=None)
    assert everywhere.channel_hash == 0
    assert everywhere.authorizes(Scope.PUBLISH, 12345)
    with pytest.raises(LocalProtocolError, match="WILDCARD"):
        issue(Scope.PUBLISH, channel=None)
    with pytest.raises(ChannelError):
        issue(channel="/bad")


def test_a_token_must_live() -> None:
    assert DELEGATIONS["issue_with_ttl_zero"] == "token: zero_ttl"
    for ttl_s in (0, -5):
        assert fault_of(lambda ttl_s=ttl_s: issue(ttl_s=ttl_s)) is AuthFault.ZERO_TTL


def test_a_lifetime_beyond_64_bits_is_cut() -> None:
    assert issue(ttl_s=1 << 64).not_after == (1 << 64) - 1


@pytest.mark.parametrize(
    "changes", [{"delegation_depth": 256}, {"generation": 1 << 32}, {"scope": 1 << 32}, {"now": -5.0}], ids=str
)
def test_values_that_do_not_fit_are_not_signed(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        issue(**changes)


def test_a_subject_is_an_entity_id() -> None:
    with pytest.raises(LocalProtocolError, match="subject has 32 bytes"):
        PermissionToken.issue(ROOT, b"alice", Scope.PUBLISH, CHANNEL, ttl_s=1, now=1, entropy=bytes)


def test_a_public_identity_cannot_issue() -> None:
    assert fault_of(lambda: issue(issuer=Identity.from_public(ROOT.entity_id))) is AuthFault.READ_ONLY


# ── time ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("now", "skew_s", "fault"),
    [
        (999.9, 0, AuthFault.NOT_YET_VALID),
        (1000.0, 0, None),
        (1099.9, 0, None),
        (1100.0, 0, AuthFault.EXPIRED),
        (940.0, 60, None),
        (939.0, 60, AuthFault.NOT_YET_VALID),
        (1159.0, 60, None),
        (1160.0, 60, AuthFault.EXPIRED),
    ],
)
def test_a_token_is_valid_between_its_times(now: float, skew_s: int, fault: AuthFault | None) -> None:
    token = issue()
    assert fault_of(lambda: token.verify(now, skew_s)) is fault
    assert token.valid(now, skew_s) == (fault is None)
    assert token.expired(now, skew_s) == (fault is AuthFault.EXPIRED)


def test_the_signature_is_looked_at_before_the_times() -> None:
    forged = msgspec.structs.replace(issue(), not_after=10_000)
    assert fault_of(lambda: forged.verify(1.0)) is AuthFault.BAD_SIGNATURE
    backwards = issue(now=2000.0, ttl_s=1)
    assert fault_of(lambda: backwards.verify(0.0)) is AuthFault.NOT_YET_VALID


def test_tokens_of_every_vector_are_judged_in_order() -> None:
    now = 1794767022.0
    faults = {
        row["case"]: fault_of(lambda raw=row["hex"]: decode_token(bytes.fromhex(raw)).verify(now))
        for row in TOKENS["rows"]
    }
    assert faults.pop("synthetic_expired") is AuthFault.EXPIRED
    assert faults.pop("synthetic_not_yet_valid") is AuthFault.NOT_YET_VALID
    bad = {row["case"] for row in TOKENS["rows"] if not row["verify"]}
    assert {case for case, fault in faults.items() if fault is AuthFault.BAD_SIGNATURE} == bad
    assert {fault for case, fault in faults.items() if case not in bad} == {None}


# ── scope ───────────────────────────────────────────────────────────────────────────────────


def test_what_a_token_authorizes() -> None:
    assert len(AUTHORIZES) == 231
    for scope, channel_hash, action, asked, expected in AUTHORIZES:
        token = msgspec.structs.replace(issue(), scope=scope, channel_hash=channel_hash)
        assert token.authorizes(action, asked) == expected, (scope, channel_hash, action, asked)


# ── delegation ──────────────────────────────────────────────────────────────────────────────

SIGNERS = {"signer_is_issuer_not_subject": ROOT, "signer_unrelated": EVE}


@pytest.mark.parametrize("row", DELEGATIONS["rows"], ids=lambda row: row["case"])
def test_delegating_gives_the_bytes_or_the_fault_of_the_reference(row: dict[str, Any]) -> None:
    parent = decode_token(bytes.fromhex(row["parent"]))
    signer = SIGNERS.get(row["case"], ALICE)
    if row["result"] != "ok":
        reason = row["result"].removeprefix("token: ")
        expected = FAULTS.get(reason) or AuthFault(reason)
        attempt = fault_of(
            lambda: parent.delegate(signer, BOB.entity_id, Scope.ALL, now=1794767022, entropy=entropy_of(1))
        )
        assert attempt is expected
        return
    theirs = decode_token(bytes.fromhex(row["child"]))
    ours = parent.delegate(
        signer, BOB.entity_id, row["child_scope_bits"], now=theirs.not_before, entropy=entropy_of(theirs.nonce)
    )
    assert encode_token(ours).hex() == row["child"]
    assert ours.delegation_depth == row["child_depth"]


def test_a_delegated_scope_is_cut_to_the_parents() -> None:
    parent = issue(Scope.SUBSCRIBE | Scope.DELEGATE, delegation_depth=1)
    child = parent.delegate(ALICE, BOB.entity_id, Scope.ALL, now=1001, entropy=entropy_of(1))
    assert child.scope == Scope.SUBSCRIBE | Scope.DELEGATE
    assert fault_of(lambda: child.delegate(BOB, EVE.entity_id, Scope.ALL, now=1001, entropy=entropy_of(1))) is (
        AuthFault.DELEGATION_EXHAUSTED
    )


def test_the_reference_takes_our_tokens_and_we_take_its() -> None:
    root, alice = (net.Identity.from_seed(identity.seed) for identity in (ROOT, ALICE))
    theirs = decode_token(root.issue_token(ALICE.entity_id, ["subscribe", "delegate"], CHANNEL, 3600, 2))
    now = theirs.not_before  # the reference reads the clock of the machine
    theirs.verify(now)
    ours = issue(Scope.SUBSCRIBE | Scope.DELEGATE, now=now, ttl_s=3600, delegation_depth=2)
    assert net.verify_token(encode_token(ours))
    assert not net.token_is_expired(encode_token(ours))
    child = decode_token(net.delegate_token(alice, encode_token(ours), BOB.entity_id, ["subscribe"]))
    child.verify(child.not_before)
    same = ours.delegate(ALICE, BOB.entity_id, Scope.SUBSCRIBE, now=child.not_before, entropy=entropy_of(child.nonce))
    assert same == child


# ── chains ──────────────────────────────────────────────────────────────────────────────────


def test_chains_round_trip() -> None:
    chain = tuple(issue(generation=generation) for generation in range(3))
    assert decode_chain(encode_chain(chain)) == chain
    assert encode_chain(chain[:1]) == encode_token(chain[0])
    assert decode_chain(encode_token(chain[0])) == chain[:1]
    longest = (issue(),) * MAX_CHAIN
    assert decode_chain(encode_chain(longest)) == longest


@pytest.mark.parametrize("size", [0, 1, TOKEN_BYTES - 1, 2 * TOKEN_BYTES + 1, (MAX_CHAIN + 1) * TOKEN_BYTES])
def test_other_lengths_are_no_chains(size: int) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_chain(bytes(size))
    assert caught.value.fault is Fault.BAD_LENGTH


@pytest.mark.parametrize("length", [0, MAX_CHAIN + 1])
def test_chains_are_bounded(length: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_chain([issue()] * length)


def test_hostile_chains_are_refused_or_read() -> None:
    chain = encode_chain([issue(), issue(Scope.ALL)])
    assert_survives(decode_chain, [chain, count_chain(chain)])


# ── renewal ─────────────────────────────────────────────────────────────────────────────────


def test_a_line_has_all_that_renewal_keeps() -> None:
    first = issue(Scope.SUBSCRIBE | Scope.RENEWABLE, generation=3, delegation_depth=1)
    second = first.renewed(ROOT, now=1070.0, max_s=50)
    assert (second.not_before, second.not_after) == (1070, 1120)
    second.verify(1071)
    third = second.renewed(ALICE, now=1090.0, max_s=1000)
    third.verify(1091)
    assert third.issuer == ALICE.entity_id
    assert first.line == second.line == third.line
    assert [second.follows(first), third.follows(first), first.follows(second)] == [True, True, False]
    for name in ("subject", "scope", "channel_hash", "issuer_generation", "delegation_depth", "nonce"):
        kept = getattr(third, name)
        other = msgspec.structs.replace(third, **{name: bytes(32) if name == "subject" else kept + 1})
        assert other.line != first.line
        assert not other.follows(first)
