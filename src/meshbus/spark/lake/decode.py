"""Decode the payloads of a DataFrame: utf8 and json inside the JVM, the other codecs as Arrow batches.

Text is checked to be UTF-8. JSON is parsed by Spark's own functions, which are strict except that they ignore what follows
the first value; each payload is therefore parsed as the first element of an array whose second element is a word that no
publisher can know. `value` is the payload as it is, so no number and no escape changes. What JSON lets pass and others
read differently (repeated keys, numbers beyond a double) is a problem, never a guess. What a field accepts is in
spark/lake/fields.py; the same rules for Arrow batches are in spark/lake/payloads.py, and tests compare the two.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from meshbus.log.payload import Codec, Field, Kind, ddl_of
from meshbus.spark.lake.codec import Declaration, Form, Stored, form_of, in_order
from meshbus.spark.lake.fields import DATE_PATTERN, LARGEST_FLOAT, TIME_PATTERN, decimal_pattern, largest_integer
from meshbus.spark.lake.payloads import Decoder, decode_groups, decoder_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NATIVE = (Codec.UTF8, Codec.JSON)
"""What Spark decodes by itself."""
_DECODED = "value STRING, problem STRING"
_WHICH, _PARSED, _TEXT = "_which", "_parsed", "_text"
_LARGEST_DOUBLE = 1.7976931348623157e308
_LARGE_EXPONENT, _MANY_DIGITS, _DIGITS = "[0-9][eE][+]?[0-9]{3}", "[0-9]{309}", 309
"""What a number beyond a double looks like; most payloads are done with this. Two expressions, because Java takes eight
times as long for one with an alternative."""


def decode_rows(rows: DataFrame, declarations: Sequence[Declaration | Stored]) -> DataFrame:
    """Add the columns codec, value and problem; all three are null for raw channels.

    `value` is null where there is a problem. Rows of codecs that Spark does not know pass through Python workers, the
    others stay in the JVM. Raises ConfigError if a descriptor cannot be read.
    """
    from pyspark.sql import functions as F

    ordered = in_order(declarations)
    forms = dict(enumerate(form_of(declaration) for declaration in ordered))
    numbered = rows.withColumn(_WHICH, _which(ordered))
    names = rows.columns
    others = {number: form for number, form in forms.items() if form.codec not in {Codec.RAW, *_NATIVE}}
    if not others:
        return _natively(numbered, forms).select(*names, "codec", "value", "problem")
    concerned = F.col(_WHICH).isin(*others)
    there = _by_arrow(numbered.where(concerned), others)
    here = _natively(numbered.where(F.col(_WHICH).isNull() | ~concerned), forms)
    return here.select(*names, "codec", "value", "problem").unionByName(
        there.select(*names, "codec", "value", "problem")
    )


def _which(ordered: Sequence[Declaration | Stored]) -> Column:
    """Return the number of the first declaration that applies to a row, or null."""
    from pyspark.sql import functions as F

    chosen = F.lit(None).cast("int")
    for number, declaration in reversed(list(enumerate(ordered))):
        chosen = F.when(_applies(declaration), F.lit(number)).otherwise(chosen)
    return chosen


def _applies(declaration: Declaration | Stored) -> Column:
    from pyspark.sql import functions as F

    channel = F.col("channel")
    if isinstance(declaration, Stored):
        first, end = declaration.version.first, declaration.end
        log = (channel == declaration.channel) & (F.col("log_id") == F.lit(declaration.log_id))
        return log & (F.col("seq") >= first) & (F.lit(True) if end is None else F.col("seq") < end)
    if declaration.name is not None:
        return channel == declaration.name
    return channel.startswith(declaration.prefix or "")


def _codec(forms: dict[int, Form]) -> Column:
    from pyspark.sql import functions as F

    codec = F.lit(None).cast("string")
    for number, form in forms.items():
        if form.codec is not Codec.RAW:
            codec = F.when(F.col(_WHICH) == number, F.lit(form.codec.value)).otherwise(codec)
    return codec


def _by_arrow(rows: DataFrame, forms: dict[int, Form]) -> DataFrame:
    from pyspark.sql.pandas.functions import arrow_udf

    # arrow_udf infers the kind of function from its annotations, which its type stubs do not express.
    decode = arrow_udf(_column_decoder(forms), _DECODED)  # type: ignore[call-overload]
    decoded = rows.withColumn("_decoded", decode(_WHICH, "payload")).withColumn("codec", _codec(forms))
    return decoded.select("*", "_decoded.value", "_decoded.problem")


def _column_decoder(forms: dict[int, Form]) -> Callable[[Any, Any], Any]:
    """Return a function that decodes a column of payloads, given a column with the numbers of their forms."""
    import pyarrow as pa

    for form in forms.values():
        decoder_of(form)  # an unusable form is reported here, and not by each task
    built: dict[int, Decoder] = {}

    def decode_column(which: Any, payloads: Any) -> Any:
        if not built:
            built.update({number: decoder_of(form) for number, form in forms.items()})
        values, problems = decode_groups(built, which, payloads)
        return pa.StructArray.from_arrays(
            [pa.array(values, pa.string()), pa.array(problems, pa.string())], ["value", "problem"]
        )

    # Spark cannot use the strings that `from __future__ import annotations` makes of annotations.
    decode_column.__annotations__ = dict.fromkeys(("which", "payloads", "return"), pa.Array)
    return decode_column


def _natively(rows: DataFrame, forms: dict[int, Form]) -> DataFrame:
    """Add codec, value and problem of text and JSON, without a Python worker."""
    from pyspark.sql import functions as F

    texts = [number for number, form in forms.items() if form.codec in _NATIVE]
    objects = {number: form for number, form in forms.items() if form.codec is Codec.JSON}
    rows = rows.withColumn("codec", _codec(forms))
    if not texts:
        nothing = F.lit(None).cast("string")
        return rows.withColumns({"value": nothing, "problem": nothing})
    which = F.col(_WHICH)
    rows = rows.withColumn(_TEXT, F.when(which.isin(*texts), F.col("payload").cast("string")))
    problem = F.when(~F.is_valid_utf8(_TEXT), F.lit("payload is not valid UTF-8"))
    if objects:
        word = secrets.token_hex(16)
        rows = rows.withColumn(_PARSED, F.when(which.isin(*objects), _parse(F.col(_TEXT), word)))
        rows = _with_leaves(rows, objects)
        problem = problem.when(which.isin(*objects), _json_problem(objects, word))
    rows = rows.withColumn("problem", problem)
    return rows.withColumn("value", F.when(F.col("problem").isNull(), F.col(_TEXT)))


def _parse(text: Column, word: str) -> Column:
    from pyspark.sql import functions as F

    return F.try_parse_json(F.concat(F.lit("["), text, F.lit(f',"{word}"]')))


def _json_problem(objects: dict[int, Form], word: str) -> Column:
    """Return a sentence about a payload that is not strict JSON, or does not have the fields of its form; else null."""
    from pyspark.sql import functions as F

    parsed, text = F.col(_PARSED), F.col(_TEXT)
    whole = F.try_variant_get(parsed, "$[1]", "string").eqNullSafe(F.lit(word))
    problem = (
        F.when(F.length(F.trim(text)) == 0, F.lit("payload is empty; expected JSON"))
        .when(
            ~whole,
            F.lit(
                "payload is not strict JSON: it is malformed, goes on after its value, repeats a key, or is nested too deep"
            ),
        )
        .when(_too_large(parsed, text), F.lit("a number is too large for a double"))
    )
    for number, form in objects.items():
        if form.fields:
            problem = problem.when(F.col(_WHICH) == number, _misfit(number, form.fields))
    return problem


def _with_leaves(rows: DataFrame, objects: dict[int, Form]) -> DataFrame:
    """Add the fields of parsed payloads, and their types as text.

    As columns of their own, because Spark computes a part of a condition anew wherever it occurs.
    """
    from pyspark.sql import functions as F

    fields = {(number, place): field for number, form in objects.items() for place, field in enumerate(form.fields)}
    parsed = F.col(_PARSED)
    rows = rows.withColumns(
        {
            _leaf(*at): F.when(F.col(_WHICH) == at[0], F.try_variant_get(parsed, f'$[0]["{field.name}"]', "variant"))
            for at, field in fields.items()
        }
    )
    return rows.withColumns({_held(*at): F.schema_of_variant(_leaf(*at)) for at in fields})


def _leaf(number: int, place: int) -> str:
    return f"_leaf_{number}_{place}"


def _held(number: int, place: int) -> str:
    return f"_held_{number}_{place}"


def _too_large(parsed: Column, text: Column) -> Column:
    """Return whether a number became infinite; a string may say Infinity itself."""
    from pyspark.sql import functions as F

    infinity = F.lit("Infinity")
    grown = F.regexp_count(F.to_json(parsed), infinity) > F.regexp_count(text, infinity)
    long = (F.octet_length(text) >= _DIGITS) & text.rlike(_MANY_DIGITS)
    return (text.rlike(_LARGE_EXPONENT) | long) & grown


def _misfit(number: int, fields: Sequence[Field]) -> Column:
    """Return a sentence about the first field that is missing or has another type; null if all fit."""
    from pyspark.sql import functions as F

    expected = f"expected an object with {', '.join(field.name for field in fields)}"
    whole = F.schema_of_variant(F.try_variant_get(_PARSED, "$[0]", "variant"))
    # Only an object has fields, so the type of the whole matters only where none was found.
    without = reduce(and_, (F.col(_leaf(number, place)).isNull() for place in range(len(fields))))
    problem = F.when(without & ~whole.startswith("OBJECT<"), expected)
    for place, field in enumerate(fields):
        leaf, held = F.col(_leaf(number, place)), F.col(_held(number, place))
        given = leaf.isNotNull() & ~F.is_variant_null(leaf)
        if not field.nullable:
            problem = problem.when(~given, F.lit(f"{field.name} is missing"))
        told = F.concat(F.lit(f"{field.name}: expected {field.kind.ddl}, got "), F.substring(held, 1, 80))
        problem = problem.when(given & ~_fits(leaf, field.kind, held), told)
    return problem


def _fits(leaf: Column, kind: Kind, known: Column | None = None) -> Column:
    """Return whether a variant, neither missing nor null, is what a type accepts; `known` is its type, if it is there."""
    from pyspark.sql import functions as F

    held = F.schema_of_variant(leaf) if known is None else known
    match kind.name:
        case "boolean" | "string":
            return held == kind.name.upper()
        case "tinyint" | "smallint" | "int" | "bigint":
            return (held == "BIGINT") & F.try_variant_get(leaf, "$", kind.name).isNotNull()
        case "float" | "double":
            most = LARGEST_FLOAT if kind.name == "float" else _LARGEST_DOUBLE
            number = held.isin("BIGINT", "DOUBLE") | held.startswith("DECIMAL")
            return number & (F.abs(F.try_variant_get(leaf, "$", "double")) <= F.lit(most))
        case "decimal":
            return _fits_decimal(leaf, kind)
        case "binary" | "date" | "timestamp":
            return (held == "STRING") & _fits_text(F.try_variant_get(leaf, "$", "string"), kind)
        case _:
            return _fits_nested(leaf, kind)


def _fits_decimal(leaf: Column, kind: Kind) -> Column:
    from pyspark.sql import functions as F

    held = F.schema_of_variant(leaf)
    most = largest_integer(kind)
    whole = (held == "BIGINT") & F.try_variant_get(leaf, "$", "bigint").between(-most, most)
    return whole | ((held == "STRING") & F.try_variant_get(leaf, "$", "string").rlike(decimal_pattern(kind) + r"\z"))


def _fits_text(text: Column, kind: Kind) -> Column:
    from pyspark.sql import functions as F

    match kind.name:
        case "binary":
            # Two simple tests, because Java matches a repeated group by recursion.
            return (F.length(text) % 4 == 0) & text.rlike(r"^[A-Za-z0-9+/]*={0,2}\z")
        case "date":
            return text.rlike(DATE_PATTERN + r"\z") & text.try_cast("date").isNotNull()
        case _:
            return text.rlike(TIME_PATTERN + r"\z") & text.try_cast("timestamp").isNotNull()


def _fits_nested(leaf: Column, kind: Kind) -> Column:
    from pyspark.sql import functions as F

    item = kind.item
    if item is None:
        isolated = F.schema_of_variant(leaf).startswith("OBJECT<")
        return reduce(and_, (_fits_member(leaf, field) for field in kind.fields), isolated)
    shape = "array<variant>" if kind.name == "array" else "map<string,variant>"
    found = F.try_variant_get(leaf, "$", shape)
    items = found if kind.name == "array" else F.map_values(found)
    return F.coalesce(
        F.forall(items, lambda one: one.isNull() | F.is_variant_null(one) | _fits(one, item)), F.lit(False)
    )


def _fits_member(leaf: Column, field: Field) -> Column:
    from pyspark.sql import functions as F

    member = F.try_variant_get(leaf, f'$["{field.name}"]', "variant")
    given = member.isNotNull() & ~F.is_variant_null(member)
    fits = given & F.coalesce(_fits(member, field.kind), F.lit(False))
    return ~given | fits if field.nullable else fits


def typed_rows(rows: DataFrame, form: Form) -> DataFrame:
    """Add the columns data, with the fields of a form, and problem, to rows that have a column value.

    The values of json and msgpack are read inside the JVM; the payloads of arrow and protobuf as Arrow batches, and data
    of arrow is an array with the rows of the event. `data` is null where there is a problem.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    names = rows.columns
    if form.codec in {Codec.ARROW, Codec.PROTOBUF}:
        decoder = decoder_of(form)
        decode = arrow_udf(_data_decoder(form), f"data {decoder.kind.ddl}, problem STRING")  # type: ignore[call-overload]
        return rows.withColumn("_decoded", decode("payload")).select(*names, "_decoded.data", "_decoded.problem")
    word = secrets.token_hex(16)
    parsed = rows.withColumns({_TEXT: F.col("value"), _WHICH: F.lit(0)}).withColumn(
        _PARSED, _parse(F.col("value"), word)
    )
    parsed = _with_leaves(parsed, {0: form})
    checked = parsed.withColumn("problem", F.when(F.col("value").isNotNull(), _json_problem({0: form}, word)))
    data = F.when(F.col("problem").isNull(), F.from_json("value", ddl_of(form.fields)))
    return checked.withColumn("data", data).select(*names, "data", "problem")


def _data_decoder(form: Form) -> Callable[[Any], Any]:
    """Return a function that decodes a column of payloads into {data, problem}."""
    import pyarrow as pa

    built: list[Decoder] = []

    def decode_column(payloads: Any) -> Any:
        if not built:
            built.append(decoder_of(form))
        data, problems = built[0].columns(payloads.to_pylist())
        return pa.StructArray.from_arrays([data, pa.array(problems, pa.string())], ["data", "problem"])

    decode_column.__annotations__ = dict.fromkeys(("payloads", "return"), pa.Array)
    return decode_column
