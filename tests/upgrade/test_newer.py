"""A file of a newer build is refused with one sentence and stays as it is: every row of docs/formats.md is tried.

Each case writes the files with the code of this build, makes them look newer, and uses them as a node or a command does.
"""

from __future__ import annotations

import base64
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from meshbus.cli.contexts import Contexts
from meshbus.config.node import NodeConfig
from meshbus.config.policyfile import read_policy
from meshbus.errors import MeshError
from meshbus.formats import Format
from meshbus.keyfile import create_identity, create_psk, load_certificate, load_identity, load_psk
from meshbus.log.consumers import list_consumers, publish_consumer
from meshbus.log.embedded.asides import list_asides
from meshbus.log.files import Files
from meshbus.log.folder import MANIFEST, MARK
from meshbus.log.packets.policies import POLICIES, PolicyBook
from meshbus.log.packets.reader import PacketReader
from meshbus.log.payload import Codec
from meshbus.log.reader import LogReader
from meshbus.log.schemas import SCHEMAS, Version, declare
from meshbus.node.audit import AuditLog, AuditRow, read_audit
from meshbus.node.daemons.daemonfiles import DaemonFiles
from meshbus.node.invites.invitefile import load_invites, save_invites
from meshbus.node.peers.pinfile import load_pins, save_pins
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.spark.io.offsets import next_of, offset_of
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.pipelineconfig import load_config, load_policy
from tests.log.making import CHANNEL, numbered, open_log, payloads
from tests.log.packets.test_store import open_store, rows
from tests.log.replicas import open_replica
from tools.formats import rows as all_rows

FORMATS: dict[str, Format] = {row.format.name: row.format for row in all_rows()}

Use = Callable[[], object]


class Case(NamedTuple):
    """A file of a newer build, and everything that meets it."""

    path: Path | None
    """The file that is newer; None if it is not a file of its own."""
    uses: tuple[Use, ...]


def newer(path: Path, old: str, name: str) -> Path:
    """Make the version of a text file one higher than this build knows; `old` is how this build writes it."""
    text = path.read_text("utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, re.sub(r"\d+", str(FORMATS[name].version + 1), old)), "utf-8")
    return path


def patch(path: Path, at: int, value: bytes) -> Path:
    """Change bytes of a file."""
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)
    return path


def filled_log(root: Path) -> Path:
    with open_log(root) as log:
        log.append_batch(numbered(0, 10))
    (folder,) = root.iterdir()
    return folder


def filled_replica(root: Path) -> Path:
    with open_replica(root) as log:
        log.append(1, 0, numbered(0, 10))
        log.sync()
        log.commit_to(5)
        log.set_aside(5)
        log.sync()
    (folder,) = root.iterdir()
    return folder


def key_files(folder: Path) -> list[Case]:
    identity, psk, pins = folder / "identity.toml", folder / "psk.toml", folder / "pins.toml"
    invites = folder / "identity.invites.toml"
    create_identity(identity)
    create_psk(psk)
    save_pins(pins, {})
    save_invites(invites, [])
    for path in (identity, psk, pins, invites):
        newer(path, "version = 1", "key file")
    return [
        Case(identity, (lambda: load_identity(identity),)),
        Case(psk, (lambda: load_psk(psk),)),
        Case(pins, (lambda: load_pins(pins),)),
        Case(invites, (lambda: load_invites(invites),)),
    ]


def certificates(folder: Path) -> list[Case]:
    path = folder / "node.certificate"
    path.write_text(base64.b64encode(bytes((FORMATS["certificate"].version + 1,)) + b"tomorrow").decode())
    return [Case(path, (lambda: load_certificate(path),))]


def settings_files(folder: Path) -> list[Case]:
    node, policy, pipeline = folder / "node.toml", folder / "policy.toml", folder / "pipeline.toml"
    contexts = Path(os.environ["XDG_CONFIG_HOME"]) / "meshbus" / "contexts.toml"
    contexts.parent.mkdir(parents=True)
    for path in (node, policy, pipeline, contexts):
        # What a newer build understands is not named as wrong: the version is looked at first.
        path.write_text("file_version = 2\na_setting_of_tomorrow = 1\n")
    return [
        Case(node, (lambda: NodeConfig.load(node, env={}), lambda: load_policy(node))),
        Case(policy, (lambda: read_policy(policy),)),
        Case(pipeline, (lambda: load_config(pipeline),)),
        Case(contexts, (Contexts.read,)),
    ]


def manifests(folder: Path) -> list[Case]:
    plain = newer(filled_log(folder / "plain") / MANIFEST, '"version":1', "manifest of a log")
    replica = filled_replica(folder / "replica") / MANIFEST
    newer(replica, '"version":3', "manifest of a log")
    return [
        Case(plain, (lambda: open_log(folder / "plain"), lambda: LogReader(folder / "plain", CHANNEL).snapshot())),
        Case(replica, (lambda: open_replica(folder / "replica"),)),
    ]


def hot_files(folder: Path) -> list[Case]:
    version = struct.pack("<H", FORMATS["hot file of a log"].version + 1)
    (plain,) = filled_log(folder / "plain").glob("_hot/*.hot")
    replica = filled_replica(folder / "replica")
    hot = max(replica.glob("_hot/*.hot"), key=lambda path: path.stat().st_mtime_ns)
    (aside,) = replica.glob("_aside/*.hot")
    for path in (plain, hot, aside):
        patch(path, 4, version)
    return [
        Case(plain, (lambda: open_log(folder / "plain"), lambda: LogReader(folder / "plain", CHANNEL).snapshot())),
        Case(hot, (lambda: open_replica(folder / "replica"),)),
        Case(aside, (lambda: list_asides(replica),)),
    ]


def segments(folder: Path) -> list[Case]:
    import pyarrow.parquet as pq

    with open_log(folder / "log") as log:
        log.append_batch(numbered(0, 10))
        log.seal()
    (path,) = (folder / "log").rglob("*.parquet")
    version = {"meshbus.schema_version": str(FORMATS["sealed segment"].version + 1)}
    pq.write_table(pq.read_table(path).replace_schema_metadata(version), path)
    return [Case(path, (lambda: payloads(LogReader(folder / "log", CHANNEL).snapshot().events()),))]


def marks(folder: Path) -> list[Case]:
    path = filled_replica(folder / "log") / MARK
    slot = len(path.read_bytes()) // 2
    # A later version has a checksum of its own.
    patch(patch(path, slot + 4, struct.pack("<IQ", 2, 7)), 4, struct.pack("<IQ", 2, 7))
    return [Case(path, (lambda: open_replica(folder / "log"), lambda: LogReader(folder / "log", CHANNEL).snapshot()))]


def side_files(folder: Path) -> list[Case]:
    log = filled_log(folder / "log")
    declare(log, Version(0, Codec.UTF8))
    path = newer(log / SCHEMAS, '"version":1', "side file of a log")
    return [Case(path, (lambda: declare(log, Version(5, Codec.JSON)),))]


def packets(folder: Path) -> list[Case]:
    store = open_store(folder)
    store.append(rows(0, 5), {})
    store.close()
    (path,) = folder.rglob("*.hot")
    patch(path, 4, struct.pack("<H", FORMATS["hot file of packets"].version + 1))
    recorder = int(path.parent.parent.name, 16)
    return [Case(path, (lambda: open_store(folder), lambda: PacketReader(folder, recorder).snapshot()))]


def recorded_policies(folder: Path) -> list[Case]:
    (folder / POLICIES).mkdir()
    book = PolicyBook(folder)
    book.number_of(GatewayPolicy(local_subnet=1))
    book.write(Files())
    (path,) = (folder / POLICIES).iterdir()
    newer(path, '"version": 1', "recorded policy")
    return [Case(path, (lambda: PolicyBook(folder), lambda: load_policy(path)))]


def daemons(folder: Path) -> list[Case]:
    DaemonFiles(folder, os.urandom).close()
    path = newer(folder / "version", '"version":1', "records of daemons")
    return [Case(path, (lambda: DaemonFiles(folder, os.urandom),))]


def tables(folder: Path) -> list[Case]:
    Store(folder).create()
    path = newer(folder / "_tables.json", '"version":1', "tables of a pipeline")
    return [Case(path, (lambda: Store(folder),))]


def offsets(folder: Path) -> list[Case]:
    offset = {**offset_of({"a": 1}, {}), "v": 2}
    return [Case(None, (lambda: next_of(offset),))]


CASES: dict[str, Callable[[Path], list[Case]]] = {
    "key file": key_files,
    "certificate": certificates,
    "settings file": settings_files,
    "manifest of a log": manifests,
    "hot file of a log": hot_files,
    "sealed segment": segments,
    "mark of a replica": marks,
    "side file of a log": side_files,
    "hot file of packets": packets,
    "recorded policy": recorded_policies,
    "records of daemons": daemons,
    "tables of a pipeline": tables,
    "offset of a query": offsets,
}
LEFT_OUT = {"audit log", "position of a consumer"}
"""Formats of which what is newer is left out; they have tests of their own below."""


@pytest.fixture(autouse=True)
def _user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a user of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("user")))


def test_every_format_is_tried() -> None:
    assert CASES.keys() | LEFT_OUT == FORMATS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_newer_file_is_refused_with_one_sentence_and_stays_as_it_is(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    sentence = (
        f"{name}, version {form.version + 1}, was written by a newer meshbus; this one reads {form.readable};"
        " use the meshbus that wrote it, or a newer one; nothing was changed"
    )
    for path, uses in CASES[name](tmp_path):
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file.stat().st_size}
        for use in uses:
            with pytest.raises(MeshError, match=re.escape(sentence)) as caught:
                use()
            assert path is None or str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
        assert {file: file.read_bytes() if file.exists() else None for file in before} == before


def test_a_newer_row_of_an_audit_log_is_reported_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_bytes(b'{"format":2,"of":"tomorrow"}\n')
    before = path.read_bytes()
    (problem,) = read_audit(path).problems
    assert problem.startswith(
        f"{path}, line 1: audit log, version 2, was written by a newer meshbus; this one reads version 1;"
    )
    AuditLog(path).append(
        AuditRow(at="now", by="user", via="apply", node_id="00000000000000ff", result="applied", policy="00")
    )
    assert path.read_bytes().startswith(before)


def test_a_newer_position_of_a_consumer_is_left_out_and_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("old", "tomorrow"):
        publish_consumer(tmp_path, name, {"a": 3}, 10)
    path = tmp_path / "_consumers" / "tomorrow.json"
    newer(path, '"version":1', "position of a consumer")
    before = path.read_bytes()
    assert [one.consumer for one in list_consumers(tmp_path)] == ["old"]
    assert path.read_bytes() == before


def test_the_versions_of_this_build_are_written_down() -> None:
    """A version that changes must be changed here too, with a test that reads files of the version before it."""
    assert {row.format.name: (row.format.oldest, row.format.version) for row in all_rows()} == {
        "key file": (1, 1),
        "certificate": (1, 1),
        "settings file": (1, 1),
        "manifest of a log": (1, 3),
        "hot file of a log": (1, 2),
        "sealed segment": (1, 2),
        "mark of a replica": (1, 1),
        "side file of a log": (1, 1),
        "hot file of packets": (3, 3),
        "recorded policy": (1, 1),
        "position of a consumer": (1, 1),
        "audit log": (1, 1),
        "records of daemons": (1, 1),
        "tables of a pipeline": (1, 1),
        "offset of a query": (1, 1),
    }
