from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from meshbus.errors import ConfigError
from meshbus.names.identity import Identity
from meshbus.node.peers.pinfile import PinWriter, load_pins, save_pins

ALICE, BOB = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
PINS = {who.node_id: who.entity_id for who in (ALICE, BOB)}


def test_pins_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "node.pins.toml"
    assert load_pins(path) == {}
    save_pins(path, PINS)
    assert load_pins(path) == PINS
    save_pins(path, {})
    assert load_pins(path) == {}
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes", "damaged"),
        ('version = 1\nkind = "psk"\n', "not a file of kind"),
        ('version = 2\nkind = "pins"\n', "was written by a newer meshbus"),
        ('version = 1\nkind = "pins"\nnodes = 3\n', "damaged"),
        (f'version = 1\nkind = "pins"\n[nodes]\n"{ALICE.node_id:016x}" = "{BOB.entity_id.hex()}"\n', "is damaged"),
        (f'version = 1\nkind = "pins"\n[nodes]\n"{ALICE.node_id:016x}" = "00"\n', "is damaged"),
        ("#" * 2_000_000, "longer than"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "pins.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=problem):
        load_pins(path)


@pytest.mark.skipif(os.name != "posix", reason="modes of files are a matter of POSIX")
def test_a_file_that_others_can_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    save_pins(path, PINS)
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_pins(path)


async def test_changes_are_written_in_the_background(tmp_path: Path) -> None:
    path, pins = tmp_path / "pins.toml", dict[int, bytes]()
    writer = PinWriter(path, lambda: pins)
    writer.changed()
    pins.update(PINS)
    writer.changed()
    await writer.close()
    assert load_pins(path) == PINS
    pins.clear()
    writer.changed()
    await writer.close()
    assert load_pins(path) == {}


async def test_without_a_path_nothing_is_written() -> None:
    writer = PinWriter(None, lambda: PINS)
    writer.changed()
    await writer.close()


async def test_a_disk_that_refuses_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    writer = PinWriter(path / "." / "..", lambda: PINS)
    with caplog.at_level(logging.WARNING):
        writer.changed()
        await writer.close()
    assert "cannot be written" in caplog.text
