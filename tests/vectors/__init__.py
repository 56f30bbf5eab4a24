"""Golden bytes, most of them captured from net-mesh 0.23.0 nodes; one json file per part of the protocol."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def load(name: str) -> dict[str, Any]:
    """Read the sections of one file, by its name without the suffix."""
    sections: dict[str, Any] = json.loads(Path(__file__).with_name(f"{name}.json").read_bytes())
    return sections
