"""Every command of `meshbus` is run by a test as users run it: with success, a bad argument, and against nodes that fail it."""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from cyclopts import App

from meshbus.cli import VERBS
from tests.cli.verbcases import ELSEWHERE, LANES, WHY_NOT, Kind
from tests.house.tree import ROOT


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every command as users type it, and the function behind it."""
    for verb, (place, _) in VERBS.items():
        module, _, name = place.partition(":")
        found = getattr(import_module(module), name)
        if isinstance(found, App):
            if found.default_command is not None:
                yield verb, found.default_command
            for one in found:
                if not one.startswith("-") and (function := found[one].default_command) is not None:
                    yield f"{verb} {one}", function
        else:
            yield verb, found


def needed(function: Callable[..., Any]) -> set[Kind]:
    """Return the kinds of cases that a command needs: more if it reaches a node."""
    parameters = inspect.signature(function).parameters.values()
    reaches = any(one.name == "admin" or "MeshOptions" in str(one.annotation) for one in parameters)
    return {Kind.SUCCESS, Kind.BAD_ARGUMENT} | ({Kind.UNREACHABLE, Kind.DENIED} if reaches else set())


COMMANDS = dict(commands())
RUN = {(case.verb, case.kind) for lane in LANES.values() for case in lane}


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_is_run_with_success_and_in_every_way_that_it_fails(verb: str) -> None:
    excused = {*WHY_NOT.get(verb, ()), *ELSEWHERE.get(verb, ())}
    lacking = [kind.value for kind in sorted(needed(COMMANDS[verb])) if kind not in excused and (verb, kind) not in RUN]
    assert not lacking, f"add cases to tests/cli/verbcases.py for `meshbus {verb}`: {', '.join(lacking)}"


def test_nothing_is_excused_that_is_run_or_not_needed() -> None:
    excuses = [(verb, kind) for table in (WHY_NOT, ELSEWHERE) for verb, kinds in table.items() for kind in kinds]
    assert [
        (verb, kind.value) for verb, kind in excuses if (verb, kind) in RUN or kind not in needed(COMMANDS[verb])
    ] == []
    assert {verb for verb, _ in RUN} <= set(COMMANDS)


def test_no_case_is_run_twice() -> None:
    names = [case.name for lane in LANES.values() for case in lane]
    assert sorted(names) == sorted(set(names))


def test_what_is_run_elsewhere_is_a_test() -> None:
    for place in {place for kinds in ELSEWHERE.values() for place in kinds.values()}:
        file, _, name = place.partition("::")
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, place
