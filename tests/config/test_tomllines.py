"""Every key, table and item of a text is found on its line, however it is written."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.config.tomllines import line_of, lines_of

TEXT = '''\
# a comment with [brackets] and = signs
first = 1
"quoted key" = 'a # no comment'
dotted.inner = [1, 2,
  3,   # three
  [4, { deep = "]" }],
]
long = """
[[not_a_table]]
x = 1 \\"""
"""
raw = \'\'\'
[no] = table\'\'\'
inline = { a = 1, b = { c = "}" } }
when = 1979-05-27 07:32:00

[[channels]]
name = "a"
publish_caps = { require_tags = ["x",
  "y"] }

[[channels]]
[channels.subscribe_caps]
min_memory_gb = 4
[channels.subscribe_caps.more]
z = true

[[channels.inner]]
k = 1

[other . "t"]
last = -1
'''


def paths(value: Any, path: str = "") -> list[str]:
    """The paths of everything that tomllib found."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += paths(item, f"{path}[{number}]")
    return found


def test_all_that_tomllib_finds_has_a_line() -> None:
    lines = lines_of(TEXT)
    assert [path for path in paths(tomllib.loads(TEXT)) if line_of(path, lines) is None] == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("first", 2),
        ("quoted key", 3),
        ("dotted", 4),
        ("dotted.inner", 4),
        ("dotted.inner[2]", 5),
        ("dotted.inner[3][1].deep", 6),
        ("long", 8),
        ("raw", 12),
        ("inline.b.c", 14),
        ("when", 15),
        ("channels", 17),
        ("channels[0]", 17),
        ("channels[0].name", 18),
        ("channels[0].publish_caps.require_tags[1]", 20),
        ("channels[1]", 22),
        ("channels[1].subscribe_caps", 23),
        ("channels[1].subscribe_caps.min_memory_gb", 24),
        ("channels[1].subscribe_caps.more.z", 26),
        ("channels[1].inner[0].k", 29),
        ("other.t.last", 32),
    ],
)
def test_places(path: str, line: int) -> None:
    assert lines_of(TEXT)[path] == line


def test_what_is_missing_is_reported_at_the_table_around_it() -> None:
    lines = lines_of(TEXT)
    assert line_of("channels[1].subscribe_caps.gone", lines) == 23
    assert line_of("channels[0].gone[3].more", lines) == 17
    assert line_of("gone", lines) is None


def test_what_is_nested_too_deeply_does_not_hide_what_comes_before_it() -> None:
    deep = 100_000
    assert lines_of(f"first = 1\nsecond = {'[' * deep}{']' * deep}\n")["second"] == 2


VALUES = st.recursive(
    st.integers(-9, 9) | st.booleans() | st.text("ab]}[{,#'\" \\=\n", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), inner, max_size=3),
    max_leaves=12,
)


def written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return "{" + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + "}"


@given(st.lists(VALUES, max_size=5))
def test_any_values_leave_the_next_key_on_its_line(values: list[Any]) -> None:
    text = "".join(f"key{number} = {written(value)}\n" for number, value in enumerate(values))
    assert len(tomllib.loads(text)) == len(values)
    lines = lines_of(text)
    assert [lines[f"key{number}"] for number in range(len(values))] == list(range(1, len(values) + 1))
