"""Ordinary rows are decoded without Spark, and every other row is left to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.log.log import Redex
from meshbus.log.payload import parse_fields
from meshbus.log.schema import EVENTS, arrow_schema
from meshbus.log.schemas import Version
from meshbus.spark.lake.codec import Codec, Declaration, Form, Stored
from meshbus.spark.run.quickdecode import QuickDecoder, quick_form

JSON = Form(Codec.JSON)


def rows_of(tmp_path: Path, payloads: list[bytes]) -> pa.Table:
    with Redex(tmp_path / "log", background=False) as redex:
        log = redex.open("a")
        log.append_batch(payloads)
        return pa.Table.from_batches(log.snapshot().batches()).cast(arrow_schema(EVENTS, dictionaries=False))


def held(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.name: pq.ParquetFile(path).read().to_pylist() for path in sorted(folder.glob("*"))}


def test_rows_get_their_value_or_are_returned(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [b"{}", b"{", b'{"a":1}'])
    with QuickDecoder(tmp_path / "decoded", tmp_path / "undecoded") as quick:
        left = [quick.decode(part, JSON) for part in (rows, rows.slice(1, 1), rows.slice(2))]
    assert [part["seq"].to_pylist() for part in left] == [[1], [1], []]
    (found,) = held(tmp_path / "decoded").values()
    assert [(row["seq"], row["codec"], row["value"]) for row in found] == [
        (0, "json", "{}"), (2, "json", '{"a":1}'), (2, "json", '{"a":1}'),
    ]  # fmt: skip
    assert all(row["value"].encode() == row["payload"] for row in found)
    assert not (tmp_path / "undecoded").exists()


def test_a_file_is_divided_and_only_new_rows_are_taken(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [b"%d" % number if number % 3 else b"x" for number in range(12)])

    def read() -> Iterator[Any]:
        yield from (rows.slice(0, 5), rows.slice(5, 7))

    fresh = np.arange(12) % 2 == 0
    with QuickDecoder(tmp_path / "decoded", tmp_path / "undecoded") as quick:
        quick.decode_file("one.parquet", read, JSON, fresh)
        quick.decode_file("two.parquet", read, JSON, fresh & False)
    decoded, undecoded = held(tmp_path / "decoded"), held(tmp_path / "undecoded")
    assert list(decoded) == list(undecoded) == ["one.parquet"]
    assert [(row["seq"], row["value"]) for row in decoded["one.parquet"]] == [(n, str(n)) for n in (2, 4, 8, 10)]
    assert [row["seq"] for row in undecoded["one.parquet"]] == [0, 6]


def test_a_failure_in_a_thread_fails_the_batch(tmp_path: Path) -> None:
    def read() -> Iterator[Any]:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"), QuickDecoder(tmp_path / "a", tmp_path / "b") as quick:
        quick.decode_file("one.parquet", read, JSON, np.ones(1, np.bool_))


def test_only_one_declaration_of_text_or_json_is_decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    json, text = Declaration(name="a", codec=Codec.JSON, schema="n INT"), Stored("a", b"L" * 16, Version(0, Codec.UTF8))
    assert quick_form([json]) == Form(Codec.JSON, parse_fields("n INT"))
    assert quick_form([text]) == Form(Codec.UTF8)
    for rules in ([None], [text, None], [Declaration(name="a")], [Declaration(name="a", codec=Codec.MSGPACK)]):
        assert quick_form(rules) is None
    monkeypatch.setenv("MESHBUS_JIT", "0")
    assert quick_form([json]) is None
