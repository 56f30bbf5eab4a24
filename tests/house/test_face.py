"""The public face: sorted, complete, importable, and cheap until used."""

import json
import re
import subprocess
import sys

import meshbus

HEAVY = ["cryptography", "msgspec", "nacl", "numba", "numpy", "pyarrow", "pyspark", "starlette"]


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert list(meshbus.__all__) == sorted(set(meshbus.__all__))


def test_all_and_the_lazy_table_agree() -> None:
    tables = [value for name, value in vars(meshbus).items() if re.match("_[A-Za-z]", name) and isinstance(value, dict)]
    assert len(tables) == 1, "the face keeps one private table: public name -> where it lives"
    assert set(meshbus.__all__) - {"__version__"} == set(tables[0])


def test_every_public_name_imports_and_is_listed_by_dir() -> None:
    listed = set(dir(meshbus))
    for name in meshbus.__all__:
        assert getattr(meshbus, name) is not None, name
        assert name in listed, f"dir(meshbus) does not list {name}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(meshbus, "no_such_name")


def test_importing_meshbus_loads_nothing_heavy() -> None:
    program = f"import json, sys, meshbus; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = json.loads(answer.stdout)
    assert not loaded, f"`import meshbus` loaded {loaded}: import them where they are used"
