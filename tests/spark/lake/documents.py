"""Random payloads for JSON channels: valid ones of every type, odd ones, and ones that were damaged."""

import random
from collections.abc import Iterator

from tests.spark.lake.fieldcases import CASES

SCHEMA = (
    "a INT NOT NULL, b DOUBLE, c STRING, d DECIMAL(5,2), e BINARY, f DATE, g TIMESTAMP, h ARRAY<INT>, i MAP<STRING,DOUBLE>,"
    " j STRUCT<x INT NOT NULL, y STRING>, k BOOLEAN, l FLOAT, m BIGINT, n TINYINT, o DECIMAL(2,2), `p é` SMALLINT"
)
_OF_TYPE = {
    "a": ["0", "7", "-2147483648", "2147483647"],
    "b": ["1", "-0.5", "1e5", "2.5E-07", "123456789012345678901234567890", "-0", "0.0"],
    "c": ['""', '"x"', '"\\u00e9\\n"', '"é😀"', '"a\\"b"', '"Infinity 1e999"'],
    "d": ['"12.5"', "7", '"-999.99"', '"1"'],
    "e": ['""', '"AAE="', '"AA=="', '"abcd+/12"'],
    "f": ['"2024-02-29"', '"1999-12-31"', '"2000-02-29"'],
    "g": ['"2026-11-17T02:30:00Z"', '"2026-11-17T02:30:00.123456+05:30"', '"1000-01-01T00:00:00.1-17:59"'],
    "h": ["[]", "[1,null,-3]", "[ 1 , 2 ]"],
    "i": ["{}", '{"x":1.5,"y":null}'],
    "j": ['{"x":1}', '{"x":1,"y":"z","other":[{}]}', '{"y":null,"x":0}'],
    "k": ["true", "false"],
    "l": ["0.5", "1", "99999999999999999999999999999999999999", "-1.25"],
    "m": ["123456789012345678", "-1", "9223372036854775807"],
    "n": ["-128", "127"],
    "o": ['"0.25"', '"0"', "0"],
    "p é": ["-32768", "1"],
}
_ODD = [
    "null", "-0", "00", "01", "+1", ".5", "1.", "1e", "1e+", "1e400", "-1.5e999", "1e100", "1E05", "1e-99", "9" * 19,
    "9" * 39, "9" * 101, "9" * 400, "0." + "1" * 120, "NaN", "Infinity", "nul", "tr", "truee", "0x1", "1 2", "[", "]", "{", "}",
    "[1,]", "[,1]", "[1 2]", '{"a":1,}', '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', '{"q":{"k":1,"k":1}}', "{'a':1}", '{"a" 1}',
    '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00\\ud800"', '"\\uD7FF"', '"\\uE000"', '"\\u12g4"', '"\\x41"', '"\\u123"', '"\\',
    '"\x01"', '"\x7f"', '"unterminated', "[" * 40 + "]" * 40, "[" * 31 + "]" * 31, '{"a":' * 40 + "1" + "}" * 40,
    '{"":1}', '{"a":{}}', "[[[1],[2]],{}]", "true false", "//c", "/**/1", '"2023-02-29"', '"0000-01-01"', '"0999-01-01"',
    '"9999-12-31"', '"2026-04-31"', '"2026-1-01"', '"2026-11-17T24:00:00Z"', '"2026-11-17T23:60:00Z"', '"2026-11-17T23:59:60Z"',
    '"2026-11-17T02:30:00+18:00"', '"2026-11-17T02:30:00-00:00"', '"2026-11-17T02:30:00.Z"', '"2026-11-17T02:30:00.1234567Z"',
    '"2026-11-17 02:30:00Z"', '"2026-11-17T02:30:00z"', '"2026-11-17T02:30:00"', '"A==="', '"===="', '"AA=A"', '"AAE"', '"AA-_"',
    '"1.234"', '"-"', '"1."', '".5"', '"0.255"', '"1e2"', '"1\\n"', '"٣"',
    "{" + ",".join(f'"k{number}":{number}' for number in range(140)) + "}",
]  # fmt: skip
_BYTES = [b"", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xef\xbb\xbf", b"\x00", b'"', b"\\", b",",
          b"}", b"]", b" ", b"\xc2\xa0", "é".encode(), b"1", b"e", b"-", b"."]  # fmt: skip


def documents(seed: int, count: int) -> Iterator[bytes]:
    """Yield payloads; about half of them are ordinary."""
    rng = random.Random(seed)
    for _ in range(count):
        document = _document(rng, rng.choice((0, 0, 0, 0.1, 0.5)))
        yield _damaged(rng, document) if rng.random() < 0.3 else document


def _document(rng: random.Random, odd: float) -> bytes:
    odd_values = [*_ODD, *(text for _, text, _ in CASES)]
    names = rng.sample(sorted(_OF_TYPE), rng.randrange(len(_OF_TYPE)))
    names += ["a"] * ("a" not in names and rng.random() < 0.9)
    space = rng.choice(("", "", " ", "\n\t ", "\r\n"))
    members = []
    for name in names:
        value = rng.choice(odd_values) if rng.random() < odd else rng.choice(_OF_TYPE[name])
        members.append(f'"{name}"{space}:{space}{value}')
    if rng.random() < 0.3:
        members.append(f'"more":{rng.choice(odd_values) if rng.random() < odd else "[1,{}]"}')
    if rng.random() < odd / 4:
        members.append(rng.choice(members or ['"a":1']))
    text = f"{space}{{{space}{f'{space},{space}'.join(members)}{space}}}{space}"
    return (rng.choice(odd_values) if rng.random() < odd / 8 else text).encode()


def _damaged(rng: random.Random, document: bytes) -> bytes:
    at = rng.randrange(len(document) + 1)
    return document[:at] + rng.choice(_BYTES) + document[at + rng.randrange(3) :]
