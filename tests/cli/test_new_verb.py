"""How to add a verb: one module, and its line in `VERBS` of cli/__init__.py.

The example shows the hashes of a channel name. The module is a plain function that uses the API and prints with
cli/output.py. The line says where the function is and what the verb does. Everything else follows: help, the `--json`
option, usage errors, and the exit status of an error of the API.
"""

import json
from pathlib import Path

import pytest
import xxhash

from meshbus.cli import VERBS
from meshbus.cli.exit import Exit
from tests.cli.conftest import Meshbus

MODULE = '''\
"""`meshbus hashes`: show the hashes of a channel name."""

from __future__ import annotations

from meshbus.cli.output import Json, show_facts


def hashes(channel: str, *, json: Json = False) -> None:
    """Show the hashes that packets carry of a channel name."""
    from meshbus.names.channel import ChannelName  # inside, so that `meshbus --help` does not load it

    name = ChannelName(channel)
    show_facts({"channel": str(name), "canonical": f"{name.hash:016x}", "wire": f"{name.wire_hash:04x}"}, json=json)
'''
LINE = ("new_verb_hashes:hashes", "Show the hashes of a channel name.")


@pytest.fixture(autouse=True)
def _new_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_verb_hashes.py").write_text(MODULE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(VERBS, "hashes", LINE)


def test_a_verb_is_a_module_and_a_line(meshbus: Meshbus) -> None:
    result = meshbus("hashes", "sensors/lidar")
    canonical = f"{xxhash.xxh3_64_intdigest(b'sensors/lidar'):016x}"
    assert (result.code, result.err) == (Exit.OK, "")
    assert json.loads(result.out) == {"channel": "sensors/lidar", "canonical": canonical, "wire": canonical[-4:]}


def test_a_new_verb_is_in_the_help(meshbus: Meshbus) -> None:
    assert LINE[1] in " ".join(meshbus("--help").out.split())
    assert "Usage: meshbus hashes" in meshbus("hashes", "--help").out


def test_a_wrong_option_of_a_new_verb_is_a_usage_error(meshbus: Meshbus) -> None:
    result = meshbus("hashes", "sensors/lidar", "--jsom")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert result.err.endswith("see `meshbus hashes --help`\n")


def test_an_error_of_the_api_in_a_new_verb_is_one_line_and_an_exit_status(meshbus: Meshbus) -> None:
    result = meshbus("hashes", "Sensors")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert result.err.startswith("meshbus: ")
    assert result.err.count("\n") == 1
