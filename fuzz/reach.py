"""Which lines of meshbus a call runs through, and in which order: the sign that an input is something new.

An *arc* is a pair of lines that ran one after the other, across calls as well. Python 3.12 and later report lines by
`sys.monitoring`, 3.11 by `sys.settrace`; both count the same. Compiled kernels report nothing: targets that matter there
compare a kernel with its reference, which does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import meshbus

_OURS = str(Path(meshbus.__file__).parent)
_LINES = 16
"""Bits of a place that hold the line; the rest is the number of the function."""
_PLACES = 32
"""Bits of a place."""
_PLACE = (1 << _PLACES) - 1


class Reach:
    """Follows calls. Only one may exist at a time."""

    def __init__(self) -> None:
        self.arcs: set[int] = set()
        """Of the last call."""
        self._last = 0
        self._codes: list[CodeType] = []
        """Functions that were entered; the position of one is its number."""
        self._numbers: dict[int, int] = {}
        """By the id of the code, because hashing a code object reads all of it; `_codes` keeps the ids valid."""
        self._strange: list[CodeType] = []
        self._told = 0

    def follow(self, run: Callable[[bytes], object], data: bytes) -> None:
        """Call a function, and set `arcs` to what it ran through, also if it raises."""
        self.arcs = set()
        self._last = 0
        with _watching(self):
            run(data)

    def lines(self, arcs: set[int]) -> tuple[int, int]:
        """Return how many lines arcs include, and how many lines the functions have that were entered."""
        reached = {arc & _PLACE for arc in arcs}
        return len(reached), len(reached.union(self._places()))

    def new_constants(self) -> Iterator[object]:
        """Yield what functions that were entered since the last call compare with: numbers, bytes and texts.

        These are their constants, and those of their modules that they name, those in enums and other classes among them.
        """
        new, self._told = self._codes[self._told :], len(self._codes)
        modules = {getattr(module, "__file__", None): module for module in list(sys.modules.values())}
        for code in new:
            yield from _constants(code.co_consts)
            known = vars(modules[code.co_filename]) if code.co_filename in modules else {}
            for name in code.co_names:
                value = known.get(name)
                inside = (
                    [one for label, one in vars(value).items() if label.isupper()]
                    if isinstance(value, type)
                    else [value]
                )
                yield from _constants(tuple(inside))

    def _places(self) -> Iterator[int]:
        for number, code in enumerate(self._codes):
            lines = {line for _, _, line in code.co_lines() if line}
            # The line of `def` is run when the function is defined, not when it is called.
            yield from (number << _LINES | line for line in (lines - {code.co_firstlineno} or lines))

    def number_of(self, code: CodeType) -> int:
        """Return the number of a function of meshbus; -1 for others."""
        number = self._numbers.get(id(code))
        if number is None:
            ours = code.co_filename.startswith(_OURS)
            number = self._numbers[id(code)] = len(self._codes) if ours else -1
            (self._codes if ours else self._strange).append(code)
        return number

    def add(self, number: int, line: int) -> None:
        """Note that a line runs."""
        place = number << _LINES | line
        self.arcs.add(self._last << _PLACES | place)
        self._last = place


def _constants(values: tuple[Any, ...]) -> Iterator[object]:
    for value in values:
        if isinstance(value, Enum):
            yield value.value
        elif isinstance(value, tuple | frozenset):
            yield from _constants(tuple(value))
        elif isinstance(value, int | bytes | str):
            yield value


if sys.version_info >= (3, 12):
    _TOOL = 4
    """An id that neither debuggers, coverage nor profilers use."""

    @contextmanager
    def _watching(reach: Reach) -> Iterator[None]:
        """Report lines by `sys.monitoring`."""
        monitoring = sys.monitoring

        def line_runs(code: CodeType, line: int) -> object:
            number = reach.number_of(code)
            if number < 0:
                return monitoring.DISABLE
            reach.add(number, line)
            return None

        if monitoring.get_tool(_TOOL) is None:
            monitoring.use_tool_id(_TOOL, "meshbus fuzz")
        monitoring.register_callback(_TOOL, monitoring.events.LINE, line_runs)
        monitoring.set_events(_TOOL, monitoring.events.LINE)
        try:
            yield
        finally:
            monitoring.set_events(_TOOL, 0)

    @contextmanager
    def unwatched() -> Iterator[None]:
        """Leave out what a block does, such as preparing what a target then uses."""
        monitoring = sys.monitoring
        events = monitoring.get_events(_TOOL) if monitoring.get_tool(_TOOL) else 0
        if events:
            monitoring.set_events(_TOOL, 0)
        try:
            yield
        finally:
            if events:
                monitoring.set_events(_TOOL, events)

else:

    @contextmanager
    def _watching(reach: Reach) -> Iterator[None]:
        """Report lines by `sys.settrace`."""

        def function_called(frame: FrameType, _event: str, _argument: Any) -> Any:
            number = reach.number_of(frame.f_code)
            if number < 0:
                return None

            def line_runs(frame: FrameType, event: str, _argument: Any) -> Any:
                if event == "line":
                    reach.add(number, frame.f_lineno)
                return line_runs

            return line_runs

        before = sys.gettrace()
        sys.settrace(function_called)
        try:
            yield
        finally:
            sys.settrace(before)

    @contextmanager
    def unwatched() -> Iterator[None]:
        """Leave out what a block does, such as preparing what a target then uses."""
        before = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(before)
