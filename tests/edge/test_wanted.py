from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from meshbus.edge.wanted import FEW, Interests

PREFIXES = st.binary(max_size=3).map(lambda raw: bytes(byte % 3 for byte in raw))
STEPS = st.lists(st.tuples(st.booleans(), PREFIXES), max_size=60)


@given(STEPS, st.lists(PREFIXES, min_size=1, max_size=20))
def test_as_a_plain_count_and_a_plain_scan(steps: list[tuple[bool, bytes]], topics: list[bytes]) -> None:
    interests, counts = Interests(), Counter[bytes]()
    for add, prefix in steps:
        if add:
            interests.add(prefix)
            counts[prefix] += 1
        else:
            ended = interests.remove(prefix)
            assert ended == (counts[prefix] == 1)
            counts[prefix] = max(counts[prefix] - 1, 0)
        held = sorted(prefix for prefix, count in counts.items() if count)
        assert interests.prefixes() == held
    messages: list[tuple[bytes, ...]] = [(topic, b"body") for topic in topics]
    held = sorted(prefix for prefix, count in counts.items() if count)
    expected = [message for message in messages if any(message[0].startswith(prefix) for prefix in held)]
    assert interests.select(messages) == expected


def test_many_prefixes_are_searched() -> None:
    interests = Interests()
    for number in range(FEW * 4):
        interests.add(b"topic/%d/" % number)
    wanted, unwanted = (b"topic/9/x",), (b"topic/x",)
    assert interests.select([wanted, unwanted]) == [wanted]
