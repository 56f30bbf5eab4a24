"""The reference accepts what Python's own parser accepts, within its limits."""

import json

import pytest

from meshbus.log.payload import parse_fields
from meshbus.spark.lake.jsonplan import plan_of
from meshbus.spark.lake.jsonreference import DEEPEST, LARGEST, MOST_KEYS, accepts
from tests.spark.lake.documents import SCHEMA, documents

ANYTHING = plan_of(())


def test_what_it_accepts_is_json_without_repeated_keys() -> None:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    payloads = list(documents(7, 2000))
    accepted = [payload for payload in payloads if accepts(payload, ANYTHING)]
    for payload in accepted:
        json.loads(payload.decode(), object_pairs_hook=once, parse_constant=pytest.fail)
    assert len(accepted) > len(payloads) / 3


def test_fields_must_be_there_with_their_types() -> None:
    plan = plan_of(parse_fields(SCHEMA))
    whole = (
        b'{"a":1,"b":1.5,"c":"x","d":"1.5","e":"AA==","f":"2026-01-31","g":"2026-01-31T01:02:03+01:00","h":[1],"i":{"x":1},'
        b'"j":{"x":1},"k":true,"l":1,"m":2,"n":3,"o":"0.5","p \xc3\xa9":4,"more":[{"a":"x"}]}'
    )
    assert accepts(whole, plan)
    wrong = [
        (b'"a":1', b'"z":1'), (b'"a":1', b'"a":null'), (b":1.5", b':"1.5"'), (b':"x"', b":1"), (b'"d":"1.5"', b'"d":1.5'),
        (b"AA==", b"AA="), (b'"2026-01-31",', b'"2026-02-31",'), (b"+01:00", b"+18:00"), (b"[1]", b'["1"]'),
        (b'"i":{"x":1}', b'"i":{"x":"1"}'), (b'"j":{"x":1}', b'"j":{}'), (b":true", b":1"), (b'"l":1', b'"l":1e1'),
        (b'"n":3', b'"n":128'), (b'"0.5"', b'"1.5"'), (b'"more"', b'"a"'), (b"2026-01-31T", b"0999-01-31T"),
    ]  # fmt: skip
    for right, other in wrong:
        assert whole.count(right) >= 1
        assert not accepts(whole.replace(right, other, 1), plan), other


def test_it_has_limits() -> None:
    def keys(count: int) -> bytes:
        return b"{%s}" % b",".join(b'"%d":0' % key for key in range(count))

    for inside, outside in (
        (b"[" * DEEPEST + b"]" * DEEPEST, b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1)),
        (keys(MOST_KEYS), keys(MOST_KEYS + 1)),
        (b'"%s"' % (b"x" * (LARGEST - 2)), b'"%s"' % (b"x" * (LARGEST - 1))),
    ):
        assert accepts(inside, ANYTHING)
        assert not accepts(outside, ANYTHING)
