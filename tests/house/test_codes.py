"""Every error has a stable code of its own, and the code is documented."""

import inspect
import re
from collections import defaultdict

import pytest

from meshbus import errors
from tests.house.tree import ROOT

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, errors.MeshError) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_error_states_its_own_code(error: type[errors.MeshError]) -> None:
    assert "code" in vars(error), f"{error.__name__} inherits its code; give it one of its own"
    assert re.fullmatch(r"[a-z][a-z0-9_]*", error.code), f"{error.__name__}.code = {error.code!r} is not a short word"


def test_codes_are_unique() -> None:
    holders = defaultdict(list)
    for error in CLASSES:
        holders[error.code].append(error.__name__)
    shared = {code: names for code, names in holders.items() if len(names) > 1}
    assert not shared, f"one code, several errors: {shared}"


def test_every_code_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    missing = [f"`{error.code}` ({error.__name__})" for error in CLASSES if f"`{error.code}`" not in page]
    assert not missing, f"docs/errors.md lacks {', '.join(missing)}"
