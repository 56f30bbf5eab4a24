"""Storage faults for the small files beside logs: schemas, positions of consumers, keys, tokens.

Each operation is repeated with each error at each call that changes a file: it reports the error in the library's own
terms or ignores it where that is promised, and leaves the old content or the new one, never a part. Then it is repeated
without a fault, and succeeds. Logs and the recorder are in test_faults.py and packets/test_faults.py.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from meshbus.errors import ConfigError, LogError
from meshbus.keyfile import create_identity, create_psk, load_identity, load_psk
from meshbus.log.consumers import list_consumers, publish_consumer
from meshbus.log.payload import Codec
from meshbus.log.schemas import SCHEMAS, Version, declare, read_versions
from tests.log.smallfiles import ERRORS, faulty

OLD, NEW = (Version(first=first, codec=Codec.JSON, schema=f"t{first} DOUBLE") for first in (0, 7))


class Schemas:
    """Declare a second schema."""

    def before(self, folder: Path) -> None:
        declare(folder, OLD)

    def work(self, folder: Path) -> None:
        declare(folder, NEW)

    def read(self, folder: Path) -> object:
        return read_versions(folder)

    states: tuple[object, object] = ((OLD,), (OLD, NEW))


class Positions:
    """Publish how far a consumer has read."""

    def before(self, folder: Path) -> None:
        publish_consumer(folder, "reader", {"a": 1}, 1)

    def work(self, folder: Path) -> None:
        publish_consumer(folder, "reader", {"a": 2}, 2)

    def read(self, folder: Path) -> object:
        return [consumer.next for consumer in list_consumers(folder)]

    states: tuple[object, object] = ([{"a": 1}], [{"a": 2}])


class Secret:
    """Create a file with a secret, which must not exist yet."""

    def __init__(self, create: Callable[[Path], object], load: Callable[[Path], object]) -> None:
        self._create, self._load = create, load

    def before(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)

    def work(self, folder: Path) -> None:
        self._create(folder / "secret")

    def read(self, folder: Path) -> object:
        place = folder / "secret"
        return "whole" if place.exists() and self._load(place) else "none"

    states: tuple[object, object] = ("none", "whole")


OPERATIONS: dict[str, Schemas | Positions | Secret] = {
    "schemas": Schemas(),
    "consumer": Positions(),
    "identity": Secret(create_identity, load_identity),
    "mesh key": Secret(create_psk, load_psk),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: errno.errorcode[error])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_at_any_call_leaves_the_old_content_or_the_new(name: str, error: int, tmp_path: Path) -> None:
    operation = OPERATIONS[name]
    folder = tmp_path / "plain"
    folder.mkdir()
    operation.before(folder)
    with faulty(folder) as calls:
        operation.work(folder)
    assert operation.read(folder) == operation.states[1]
    assert len(calls.names) >= 3
    for at, called in enumerate(calls.names):
        folder = tmp_path / str(at)
        folder.mkdir()
        operation.before(folder)
        with suppress(LogError, ConfigError), faulty(folder, at, error):
            operation.work(folder)
        where = f"{errno.errorcode[error]} at {called} (call {at})"
        found = operation.read(folder)
        assert found in operation.states, where
        if found == operation.states[0]:  # the cause is gone, so it works now
            operation.work(folder)
        assert operation.read(folder) == operation.states[1], where
        shutil.rmtree(folder)


def test_a_flipped_bit_in_a_small_file_is_an_error_or_ignored(tmp_path: Path) -> None:
    rng = random.Random(4)
    declare(tmp_path, OLD)
    publish_consumer(tmp_path, "reader", {"a": 1}, 1)
    create_identity(tmp_path / "node.key")
    create_psk(tmp_path / "psk.key")
    for place, read in (
        (tmp_path / SCHEMAS, lambda: read_versions(tmp_path)),
        (tmp_path / "_consumers" / "reader.json", lambda: list_consumers(tmp_path)),
        (tmp_path / "node.key", lambda: load_identity(tmp_path / "node.key")),
        (tmp_path / "psk.key", lambda: load_psk(tmp_path / "psk.key")),
    ):
        content = place.read_bytes()
        for at in range(len(content)):
            place.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
            with suppress(LogError, ConfigError):
                read()
        place.write_bytes(content)
