"""Tests that repeat with many seeds: one test that loops, and names the seed that failed.

    @for_each_seed(range(5))
    def test_a_bad_network_loses_nothing(seed: int) -> None: ...

The seed is the first argument; those after it are fixtures or parameters, and the same for every seed.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import Concatenate, ParamSpec

Rest = ParamSpec("Rest")


def for_each_seed(seeds: Iterable[int]) -> Callable[[Callable[Concatenate[int, Rest], None]], Callable[Rest, None]]:
    """Make a test of one seed a test of many."""
    seeds = tuple(seeds)

    def decorate(play: Callable[Concatenate[int, Rest], None]) -> Callable[Rest, None]:
        def test(*args: Rest.args, **kwargs: Rest.kwargs) -> None:
            for seed in seeds:
                try:
                    play(seed, *args, **kwargs)
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error

        # Its name, its marks and its arguments but the first: pytest must not look for a fixture named after the seed.
        wrapped = update_wrapper(test, play)
        signature = inspect.signature(play)
        wrapped.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
        return wrapped

    return decorate
