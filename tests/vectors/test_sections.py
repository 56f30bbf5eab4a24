"""No golden section lies idle: a test reads it, or a table here says why not yet."""

import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent

ABOUT = "describes the file"

NOT_READ = {
    "transport": {
        "about": ABOUT,
        "node_id_and_origin_note": ABOUT,
        "nack_payload": "no 0.23 node sends or acts on these; our reliable streams have a layout of their own",
        "reliability_rx": "as nack_payload",
    },
    "policy": {},
    "mesh": {
        "_about": ABOUT,
        "psk": "is read beside the packets it belongs to",
        "identities": "the same derivations as in transport",
        "reflex": "the same messages as in transport",
    },
    "pubsub": {
        "format": ABOUT,
    },
    "dialects": {
        "about": ABOUT,
        "identity_proof_signed_bytes": ABOUT,
    },
    "subprotocols": {
        "meta": ABOUT,
    },
}


def sections_read() -> dict[str, set[str]]:
    """Find every `load("file")["section"]`, directly or through a constant that holds the loaded file."""
    found: dict[str, set[str]] = {name: set() for name in NOT_READ}
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text("utf-8")
        for file, section in re.findall(r'load\("(\w+)"\)\["(\w+)"\]', text):
            found.setdefault(file, set()).add(section)
        for constant, file in re.findall(r'^(\w+) = load\("(\w+)"\)$', text, re.MULTILINE):
            found.setdefault(file, set()).update(re.findall(rf'\b{constant}\["(\w+)"\]', text))
    return found


@pytest.mark.parametrize("file", NOT_READ)
def test_every_section_is_read_or_explained(file: str) -> None:
    sections = set(json.loads((HERE / f"{file}.json").read_text("utf-8")))
    read, explained = sections_read()[file], set(NOT_READ[file])
    assert sections - read - explained == set(), "sections that no test reads and no table explains"
    assert explained - sections == set(), "the table names sections that do not exist"
    assert explained & read == set(), "the table excuses sections that a test reads"
    assert read - sections == set(), "tests read sections that do not exist"
