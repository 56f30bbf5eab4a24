"""The declaration of a channel is its own, that of the longest prefix, or what is stored beside its log."""

from pathlib import Path

import pytest

from meshbus.errors import ConfigError
from meshbus.log.payload import parse_fields
from meshbus.log.schemas import Version, declare
from meshbus.spark.lake.codec import (
    Codec,
    Declaration,
    Form,
    Stored,
    codec_of,
    declared_for,
    form_of,
    in_order,
    stored_in,
)


def test_the_longest_prefix_or_the_name_itself_decides() -> None:
    declared = [
        Declaration(prefix="a/", codec=Codec.UTF8),
        Declaration(prefix="a/b", codec=Codec.JSON),
        Declaration(name="a/b/c", codec=Codec.MSGPACK),
    ]
    first = {
        name: next(one.codec for one in in_order(declared) if isinstance(one, Declaration) and applies(one, name))
        for name in ("a/x", "a/b/x", "a/b/c")
    }
    assert first == {"a/x": Codec.UTF8, "a/b/x": Codec.JSON, "a/b/c": Codec.MSGPACK}


def applies(declaration: Declaration, channel: str) -> bool:
    return declaration.name == channel or (declaration.prefix is not None and channel.startswith(declaration.prefix))


def test_a_range_of_events_has_the_declarations_of_all_of_them() -> None:
    log = b"L" * 16
    declared: list[Declaration | Stored] = [
        Declaration(prefix="a/", codec=Codec.JSON),
        Declaration(name="a/raw"),
        Stored("b", log, Version(10, Codec.UTF8), 20),
        Stored("b", log, Version(20, Codec.RAW)),
    ]

    def codecs(channel: str, first: int, end: int, of: bytes = log) -> list[Codec | None]:
        return [None if one is None else codec_of(one) for one in declared_for(declared, channel, of, first, end)]

    assert codecs("a/x", 0, 5) == [Codec.JSON]
    assert codecs("a/raw", 0, 5) == [Codec.RAW]
    assert codecs("z", 0, 5) == [None]
    assert codec_of(None) is Codec.RAW
    spans = ((0, 10), (9, 11), (10, 20), (19, 25), (20, 25))
    assert [codecs("b", *span) for span in spans] == [
        [None], [Codec.UTF8, None], [Codec.UTF8], [Codec.UTF8, Codec.RAW], [Codec.RAW],
    ]  # fmt: skip
    assert codecs("b", 10, 20, b"M" * 16) == [None], "another log of the channel"


def test_what_is_stored_comes_last() -> None:
    stored = Stored("a", b"L" * 16, Version(0, Codec.UTF8))
    everything = Declaration(prefix="")
    named = Declaration(name="a", codec=Codec.JSON)
    assert in_order([stored, everything, named]) == [named, everything, stored]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "either 'name' or 'prefix'"),
        ({"name": "a", "prefix": "b"}, "either 'name' or 'prefix'"),
        ({"name": "a", "codec": Codec.UTF8, "schema": "a INT"}, "no columns"),
        ({"name": "a", "codec": Codec.JSON, "schema": "a WHAT"}, "unknown type WHAT"),
        ({"name": "a", "codec": Codec.PROTOBUF}, "need 'descriptor'"),
        ({"name": "a", "codec": Codec.JSON, "message": "x.Y"}, "for codec protobuf only"),
    ],
)
def test_a_wrong_declaration_is_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Declaration(**given)  # type: ignore[arg-type]


def test_a_form_contains_the_descriptor_itself(tmp_path: Path) -> None:
    (tmp_path / "x.desc").write_bytes(b"set")
    declared = Declaration(name="a", codec=Codec.PROTOBUF, descriptor="x.desc", message="x.Y").below(tmp_path)
    assert form_of(declared) == Form(Codec.PROTOBUF, (), b"set", "x.Y")
    with pytest.raises(ConfigError, match=r"no\.desc cannot be read: No such file"):
        form_of(Declaration(name="a", codec=Codec.PROTOBUF, descriptor="no.desc", message="x.Y").below(tmp_path))
    plain = Declaration(name="a", codec=Codec.JSON, schema="n INT")
    assert plain.below(tmp_path) == plain
    assert form_of(plain) == Form(Codec.JSON, parse_fields("n INT"))


def test_stored_schemas_end_where_the_next_one_starts(tmp_path: Path) -> None:
    first, second = Version(0, Codec.UTF8), Version(9, Codec.JSON, "n INT")
    declare(tmp_path, first)
    declare(tmp_path, second)
    found = stored_in(tmp_path, "a", b"L" * 16)
    assert found == [Stored("a", b"L" * 16, first, 9), Stored("a", b"L" * 16, second)]
    assert form_of(found[1]) == Form(Codec.JSON, parse_fields("n INT"))
    assert stored_in(tmp_path / "none", "a", b"L" * 16) == []
