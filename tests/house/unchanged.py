"""What other programs hold us to: bytes on the wire, codes in files, names of counters and of the public face.

`python -m tests.house.unchanged` writes it down anew; do that only in a change that means to change it, and say why.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any

import meshbus
from tests.house.tree import PACKAGE

WRITTEN = Path(__file__).parent / "unchanged.json"


def digests() -> dict[str, str]:
    """Return what whole fleets put on the wire, by scenario: a different byte or time anywhere changes it."""
    from tests.engine.badnet import assert_exactly_once_and_in_order
    from tests.test_determinism import transcript
    from tests.testing.schedules import play_schedule
    from tests.testing.test_fakenet import story

    found = {f"reliable channel, seed {seed}": assert_exactly_once_and_in_order(seed, 200).digest for seed in (7, 8)}
    found |= {f"first events, seed {seed}": story(seed).digest for seed in (1, 2)}
    found |= {f"faults, seed {seed}": play_schedule(seed).digest for seed in range(5)}
    found["handshake, token, announcement"] = hashlib.blake2s(b"".join(transcript(7))).hexdigest()
    return found


def reason_codes() -> dict[str, int]:
    """Return the codes that recorded packets carry, by name."""
    from meshbus.policy.reason import RECORDED

    return {RECORDED[code].word: code for code in sorted(RECORDED)}


def counter_names() -> list[str]:
    """Return the names of all counters: those of the reasons, and those that the source spells out."""
    from meshbus.policy.reason import Reason

    return sorted({".".join(reason.counter) for reason in Reason} | spelled_out())


def spelled_out() -> set[str]:
    """Return `what.why` for each `add("what", "why")` in the source."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="add"), args=[ast.Constant(str(what)), why, *_]):
                    found |= {f"{what}.{name}" for name in _texts(why)}
    return found


def _texts(node: ast.expr) -> set[str]:
    match node:
        case ast.Constant(str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=orelse):
            return _texts(body) | _texts(orelse)
    return set()


def current() -> dict[str, Any]:
    """Return everything that is held, as it is now."""
    return {
        "digests": digests(),
        "reason codes": reason_codes(),
        "counters": counter_names(),
        "public names": sorted(meshbus.__all__),
    }


if __name__ == "__main__":
    WRITTEN.write_text(json.dumps(current(), indent=1) + "\n", "utf-8")
