"""Holds a blocking twin to its asynchronous original: the same methods, parameters and docstrings."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

_WORDS = {
    "an async context manager": "a context manager",
    "async with": "with",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncIterator": "Iterator",
    "ChannelPublisher": "Publisher",
}
"""What differs between an original and its twin, in docstrings and annotations."""
_NAMES = {"__aiter__": "__iter__"}


def differences(original: type, twin: type, also: Mapping[str, tuple[str, ...]] = {}) -> Iterator[str]:
    """List what differs, a line each; `also` names the parameters that only a method of the twin has."""
    for name in (*_public(original), *(_NAMES & vars(original).keys())):
        twins = _NAMES.get(name, name)
        if not hasattr(twin, twins):
            yield f"{twins} is missing"
            continue
        ours, theirs = inspect.getattr_static(twin, twins), inspect.getattr_static(original, name)
        if isinstance(ours, property) != isinstance(theirs, property):
            yield f"{twins} is a property on one side only"
        wanted, got = _signature(theirs), _signature(ours)
        for extra in also.get(twins, ()):
            got.pop(extra)
        if list(got.items()) != list(wanted.items()):
            yield f"{twins}: {got} instead of {wanted}"
        text, doc = _translate(inspect.getdoc(_function(theirs)) or ""), inspect.getdoc(_function(ours)) or ""
        if doc != text and not (twins in also and doc.startswith(text)):
            yield f"{twins} says {doc!r} instead of {text!r}"
    yield from (f"{name} is new" for name in _public(twin) if not hasattr(original, name))


def attributes(original: object) -> set[str]:
    """List the public attributes of an object that its class does not have."""
    return {name for name in vars(original) if not name.startswith("_")}


def _public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def _signature(member: Any) -> dict[str, object]:
    function = _function(member)
    if not callable(function):
        return {}
    signature = inspect.signature(function)
    parameters = {
        name: (one.kind.name, one.default, _translate(str(one.annotation)))
        for name, one in signature.parameters.items()
        if name not in {"self", "cls"}
    }
    return {**parameters, "return": _translate(str(signature.return_annotation))}


def _function(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return member.__func__ if isinstance(member, classmethod) else member


def _translate(text: str) -> str:
    for word, other in _WORDS.items():
        text = text.replace(word, other)
    return text
