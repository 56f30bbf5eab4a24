"""Everything in `wire` that reads bytes of others is fuzzed, and every target has inputs to begin with."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meshbus.wire
from fuzz import corpus
from fuzz.targets import TARGETS
from meshbus.wire.layout import Layout

BYTES_OF_OTHERS = {"Buffer", "Bytes"}
"""How a parameter is annotated that takes what somebody else sent."""
USED_BY_ALL = {Layout}
"""What decoders are made of, and cannot be left out by any of them."""


def readers() -> Iterator[Callable[..., Any]]:
    """Every public function or method of `wire` whose first argument is bytes of others."""
    for found in pkgutil.walk_packages(meshbus.wire.__path__, "meshbus.wire."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(value) and _takes_bytes(value, 0):
                yield value
            elif inspect.isclass(value) and value not in USED_BY_ALL:
                methods = (method for label, method in vars(value).items() if not label.startswith("_"))
                yield from (one for one in methods if inspect.isfunction(one) and _takes_bytes(one, 1))


def _takes_bytes(function: Callable[..., Any], place: int) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    return len(parameters) > place and parameters[place].annotation in BYTES_OF_OTHERS


def test_every_reader_of_the_wire_has_a_target() -> None:
    covered = {reader for target in TARGETS.values() for reader in target.covers}
    missing = [f"{reader.__module__}.{reader.__qualname__}" for reader in readers() if reader not in covered]
    assert not missing, (
        f"no target in fuzz/targets/wire.py covers {', '.join(missing)}; add a row, and inputs to fuzz/corpus"
    )


def test_targets_cover_what_exists() -> None:
    """A reader that was renamed, or takes something else now, is not left in the table."""
    known = set(readers())
    extra = {
        f"{target.name}: {reader.__qualname__}"
        for target in TARGETS.values()
        for reader in target.covers
        if reader not in known
        and reader.__module__.startswith("meshbus.wire")
        and "memoryview" not in str(inspect.signature(reader))
    }
    assert not extra


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_a_small_corpus(name: str) -> None:
    inputs = corpus.load(name)
    assert inputs, f"fuzz/corpus/{name}.hex is missing; write a valid input as a line of hexadecimal digits"
    assert len(inputs) <= corpus.MOST_INPUTS
    assert sum(map(len, inputs)) <= corpus.MOST_BYTES
    assert max(map(len, inputs)) <= TARGETS[name].most_bytes


def test_a_corpus_belongs_to_a_target() -> None:
    assert {path.stem for path in corpus.FOLDER.iterdir()} == set(TARGETS)
