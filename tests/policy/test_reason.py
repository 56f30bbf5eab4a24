"""One enum of reasons: codes that fit their files, counters of their own, sentences that people can use."""

import re

from meshbus.policy.reason import BEFORE_GATEWAY, RECORDED, DropReason, Reason
from meshbus.policy.verdict import ASK_GUARD, VERDICTS


def test_no_two_reasons_share_a_counter() -> None:
    assert len({reason.counter for reason in Reason}) == len(Reason)


def test_recorded_codes_fit_a_byte_and_lie_in_the_range_of_their_kind() -> None:
    assert len(RECORDED) == sum(reason.code != 0 for reason in Reason), "one code, two reasons"
    gateway = [code for code in RECORDED if code < 16]
    assert gateway == list(range(1, VERDICTS))
    assert ASK_GUARD not in RECORDED, "a code inside a batch only"
    assert all(0 < code <= 255 for code in RECORDED)
    assert {RECORDED[code].what for code in RECORDED} == {"drop"}


def test_the_gateway_reasons_are_those_of_the_public_enum() -> None:
    assert {reason.name: int(reason) for reason in DropReason} == {
        reason.name: code for code, reason in RECORDED.items() if code < 16
    }


def test_before_the_gateway_is_all_of_transit_but_what_had_to_wait() -> None:
    transit = {code for code in RECORDED if 16 <= code < 32}
    assert transit - BEFORE_GATEWAY == {Reason.CROWDED.code}


def test_counters_are_short_words_and_names_follow_from_them() -> None:
    for reason in Reason:
        assert (reason.what, reason.why) == reason.counter
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", word) for word in reason.counter), reason
        named = reason.why if reason.what == "drop" else f"{reason.what}_{reason.why}"
        transit = f"transit_{reason.word}" if 0 < reason.code < 32 else None
        assert reason.word == named or reason.why == transit or reason is Reason.MALFORMED, reason


def test_each_sentence_is_one_sentence() -> None:
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][^|\n]{20,180}\.", reason.sentence), reason
