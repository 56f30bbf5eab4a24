"""Auth guard: golden bloom bits, sequences of verdicts, and batches compared with single checks."""

import hashlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.names.channel import ChannelName
from meshbus.policy import guard as guard_module
from meshbus.policy.guard import AuthGuard, AuthVerdict
from tests.vectors import load

BLOOM = load("policy")["auth_bloom"]
SEQUENCES = load("policy")["auth_guard_sequences"]["rows"]


def bits_set(guard: AuthGuard) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(guard.bloom, np.uint8), bitorder="little")).tolist())


def test_golden_bloom_bits() -> None:
    together = AuthGuard()
    for row in BLOOM["rows"]:
        pair = int(row["origin"], 16), int(row["channel"], 16)
        alone = AuthGuard()
        alone.authorize(*pair)
        together.authorize(*pair)
        assert bits_set(alone) == {row["bit1"], row["bit2"]}
        assert alone.bloom[row["byte1"]] & row["mask1"]
        assert alone.bloom[row["byte2"]] & row["mask2"]
    assert hashlib.sha256(together.bloom).hexdigest() == BLOOM["filter_sha256_after_all_rows"]
    assert len(bits_set(together)) == BLOOM["set_bits_after_all_rows"]
    assert len(together.bloom) == BLOOM["bytes"]


def test_false_positives_are_as_measured_and_never_allowed() -> None:
    guard = AuthGuard()
    for i in range(1000):
        guard.authorize(i, i)
    probes = np.arange(10_000, 20_000, dtype=np.uint64)
    verdicts = guard.check_batch(probes, probes)
    assert np.count_nonzero(verdicts == AuthVerdict.NEEDS_FULL_CHECK) == BLOOM["fp_experiment"]["false_positives"]
    assert np.count_nonzero(verdicts == AuthVerdict.ALLOWED) == 0
    assert len(bits_set(guard)) == BLOOM["fp_experiment"]["set_bits"]


@pytest.mark.parametrize("row", SEQUENCES)
def test_golden_sequences(row: dict[str, object]) -> None:
    guard = AuthGuard()
    origin, channel = (int(str(value), 16) for value in row["check"])  # type: ignore[attr-defined]
    for op in row["ops"]:  # type: ignore[attr-defined]
        # "authorize again" and "revoke once" name no pair: they mean the one that is checked.
        pair = [int(number, 16) for number in re.findall("0x[0-9a-f]+", op)] or [origin, channel]
        match op.partition("(")[0].split()[0]:
            case "authorize":
                guard.authorize(*pair)
            case "revoke":
                guard.revoke(*pair)
            case "rebuild":
                guard.rebuild_bloom()
            case unknown:
                pytest.fail(f"unknown operation {unknown}")
    assert guard.check_fast(origin, channel).name.lower() == row["verdict"]
    assert guard.check_batch([origin], [channel]).tolist() == [guard.check_fast(origin, channel)]
    if "revocations_since_rebuild" in row:
        assert guard.revocations_since_rebuild == row["revocations_since_rebuild"]


# Few distinct values, so that pairs repeat, are revoked and come back.
small = st.integers(0, 12)
operations = st.lists(st.tuples(st.sampled_from(["authorize", "revoke", "rebuild_bloom"]), small, small), max_size=200)


@given(operations)
def test_batch_equals_scalar_equals_a_set_under_any_history(history: list[tuple[str, int, int]]) -> None:
    guard, model = AuthGuard(), set()
    for name, origin, channel in history:
        if name == "authorize":
            guard.authorize(origin, channel)
            model.add((origin, channel))
        elif name == "revoke":
            guard.revoke(origin, channel)
            model.discard((origin, channel))
        else:
            guard.rebuild_bloom()
    pairs = [(origin, channel) for origin in range(14) for channel in range(14)]
    origins, channels = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    scalar = [guard.check_fast(*pair) for pair in pairs]
    assert guard.check_batch(origins, channels).tolist() == scalar
    reference = np.empty(len(pairs), np.uint8)
    guard_module._check.reference(origins, channels, guard._bloom, guard._slots, reference)
    assert reference.tolist() == scalar
    assert {pair for pair, verdict in zip(pairs, scalar, strict=True) if verdict is AuthVerdict.ALLOWED} == model
    assert len(guard) == len(model)


def test_thousands_of_pairs_and_revocations_keep_the_table_exact() -> None:
    guard = AuthGuard()
    rng = np.random.default_rng(5)
    origins, channels = rng.integers(0, 2**64, (2, 5000), dtype=np.uint64)
    for origin, channel in zip(origins.tolist(), channels.tolist(), strict=True):
        guard.authorize(origin, channel)
    for origin, channel in zip(origins[::2].tolist(), channels[::2].tolist(), strict=True):
        guard.revoke(origin, channel)
    verdicts = guard.check_batch(origins, channels)
    assert (verdicts[::2] == AuthVerdict.NEEDS_FULL_CHECK).all()
    assert (verdicts[1::2] == AuthVerdict.ALLOWED).all()


def test_endless_authorize_and_revoke_does_not_grow_the_table() -> None:
    guard = AuthGuard()
    for i in range(20_000):
        guard.authorize(i, 1)
        guard.revoke(i, 1)
    assert len(guard) == 0
    assert len(guard._slots) == guard_module._MIN_SLOTS


def test_strided_and_signed_columns_are_read_right() -> None:
    guard = AuthGuard()
    guard.authorize(7, 2**64 - 1)
    table = np.array([[7, 2**64 - 1], [8, 1]], np.uint64)
    assert guard.check_batch(table[:, 0], table[:, 1]).tolist() == [AuthVerdict.ALLOWED, AuthVerdict.DENIED]


def test_names_settle_collisions() -> None:
    guard = AuthGuard()
    name = ChannelName("sensors/lidar")
    guard.allow_channel(1, name)
    assert guard.check_fast(1, name.hash) is AuthVerdict.ALLOWED
    assert guard.is_authorized(1, name.hash)
    assert guard.is_authorized_full(1, name)
    assert not guard.is_authorized_full(1, "sensors/radar")
    guard.revoke_channel(1, name)
    assert guard.check_fast(1, name.hash) is AuthVerdict.NEEDS_FULL_CHECK
    assert not guard.is_authorized_full(1, name)


def test_every_change_grows_the_version_and_a_check_does_not() -> None:
    guard = AuthGuard()
    guard.allow_channel(1, "a")
    after_allowing = guard.version
    assert after_allowing > 0
    guard.revoke_channel(1, "a")
    after_revoking = guard.version
    assert after_revoking > after_allowing
    guard.authorize(1, 2)
    after_authorizing = guard.version
    assert after_authorizing > after_revoking
    guard.authorize(1, 2)
    guard.check_fast(1, 2)
    guard.check_batch([1], [2])
    assert guard.version == after_authorizing
