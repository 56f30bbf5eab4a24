"""A process that kills itself in the middle of its work, as a power cut would."""

import os
import signal
from collections.abc import Callable, Iterable
from typing import Any


def die_at(step: int, changes: Iterable[tuple[Any, str]]) -> None:
    """Kill this process before its n-th call of the functions, each given by its owner and its name."""
    left = [step]

    def counting(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **named: Any) -> Any:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return change(*given, **named)

        return changed

    for owner, name in changes:
        setattr(owner, name, counting(getattr(owner, name)))
