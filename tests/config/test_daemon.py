"""Settings of daemons: checked when they are read, and the code is found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from meshbus.config import NodeConfig
from meshbus.config.daemon import DaemonEntry
from meshbus.errors import ConfigError


def load(**entry: object) -> DaemonEntry:
    settings = {"name": "detector", "factory": "collections:Counter", **entry}
    return NodeConfig.load(env={}, daemons_dir="daemons", daemons=[settings]).daemons[0]


def test_an_entry_is_read_and_its_factory_found() -> None:
    entry = load(inputs=["poses@west", "alarms"], output="found", run=False, orchestrators=["00000000000000ff"])
    assert (entry.inputs, entry.output, entry.run) == (("poses@west", "alarms"), "found", False)
    assert entry.orchestrators == (255,)
    assert isinstance(entry.load_factory()(), Counter)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"factory": "collections"}, "module:factory"),
        ({"factory": ":Counter"}, "module:factory"),
        ({"inputs": ["no spaces"]}, "inputs"),
        ({"inputs": ["poses@"]}, "names no node"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_wrong_entry_is_refused(wrong: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(**wrong)


def test_code_that_is_not_there_or_cannot_be_called_is_refused(tmp_path: Path) -> None:
    (tmp_path / "half_written.py").write_text("1 / 0\n")
    for factory, problem in (
        ("no_such_module:x", "no_such_module"),
        ("collections:nothing", "nothing"),
        ("collections:__name__", "cannot be called"),
        ("half_written:x", "ZeroDivisionError"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load(factory=factory).load_factory([tmp_path])


def test_daemons_need_a_directory_and_names_of_their_own() -> None:
    entry = {"name": "detector", "factory": "collections:Counter"}
    with pytest.raises(ConfigError, match="daemons_dir"):
        NodeConfig.load(env={}, daemons=[entry])
    with pytest.raises(ConfigError, match="configured twice"):
        NodeConfig.load(env={}, daemons_dir="daemons", daemons=[entry, entry])
    kept = NodeConfig.load(env={}, daemons_dir="daemons", daemons=[entry]).without_logs()
    assert (kept.daemons_dir, kept.daemons) == (None, ())
