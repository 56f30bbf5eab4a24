"""A target: a function that takes bytes of somebody else, and the errors by which it may refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from meshbus.errors import RemoteProtocolError

Run: TypeAlias = Callable[[bytes], object]


class Target(NamedTuple):
    """One row of the table."""

    name: str
    make: Callable[[], Run]
    """Returns the function; called once in a process, before the clock of a run starts."""
    refuses: tuple[type[Exception], ...] = (RemoteProtocolError,)
    """The documented verdict of the function. Any other exception is a finding, an AssertionError of the target too."""
    covers: tuple[Callable[..., Any], ...] = ()
    """The functions of `meshbus.wire` that it calls with the input."""
    most_bytes: int = 2048
    """Longest input that is tried."""


def decoder(
    name: str,
    decode: Callable[[Any], Any],
    encode: Callable[[Any], bytes] | None = None,
    *,
    covers: tuple[Callable[..., Any], ...] = (),
    most_bytes: int = 2048,
) -> Target:
    """Return a target that reads a message. What was read must be the same after it was written and read again."""

    def run(data: bytes) -> None:
        value = decode(data)
        if encode is not None:
            again = decode(encode(value))
            assert again == value, f"{value!r} is {again!r} after it was written and read again"

    return Target(name, lambda: run, covers=(decode, *covers), most_bytes=most_bytes)
