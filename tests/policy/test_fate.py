"""The words for what became of packets."""

from meshbus.policy.fate import BEFORE_GATEWAY, REASONS, ArrivalReason, Fate, TransitReason
from meshbus.policy.verdict import VERDICTS, DropReason


def test_the_codes_of_all_reasons_differ_and_none_is_a_verdict_to_go_on() -> None:
    everything = [*DropReason, *TransitReason, *ArrivalReason]
    assert len(REASONS) == len(everything)
    assert min(TransitReason) > VERDICTS
    assert 0 not in REASONS
    assert REASONS[DropReason.TTL_EXPIRED] == "ttl_expired"


def test_only_a_crowded_packet_had_been_judged() -> None:
    assert set(TransitReason) - BEFORE_GATEWAY == {TransitReason.CROWDED}


def test_fates_are_those_of_the_packet_table() -> None:
    assert [fate.name.lower() for fate in Fate] == ["forwarded", "delivered", "dropped"]
