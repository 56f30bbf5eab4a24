"""Copies of tables on a real server, which is stopped, slow, full and refuses: the tables go on, and the status says why."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.log import Redex
from meshbus.log.objectstore import _filesystem, list_names
from meshbus.spark.lake.catalog import CATALOG, Catalog
from meshbus.spark.lake.tables import tables
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import mirroring
from meshbus.spark.run.control import status
from meshbus.spark.run.mirroring import Mirroring, Unmirrored, mirroring_of
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.runner import run as run_pipeline
from tests.objectserver import ObjectServer, SlowProxy, object_server, serving, use_profile
from tests.spark.lake.formats.made import EVENTS, START, event, write_events
from tests.spark.lake.mirror.copies import KINDS, below, copied, read_copy
from tests.spark.world import rows_of_logs

__all__ = ["object_server"]
pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
FEW = Catalog([])
"""Bronze and silver only: fewer tables to look at."""


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for the thread of the copies and for the server, which no clock of the test moves."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


class Run:
    """Tables that grow, and what keeps their copies."""

    def __init__(self, root: Path, uri: str, kind: str = "delta", **settings: float) -> None:
        self.uri = self.read_from = uri
        self.kind = kind
        self.config = PipelineConfig(tables=str(root), format=kind, mirror=uri, **settings)  # type: ignore[arg-type]
        self.store = Store(root, FEW, table_format=kind)
        self.store.create()
        self.mirroring = Mirroring(self.store, self.config)
        self.numbers: list[int] = []
        """What was committed."""

    def add(self, count: int = 5, *, padding: int = 0) -> None:
        """Commit a batch of events, with random payloads of some size if they are to fill a server."""
        table, first = self.store.table(EVENTS), len(self.numbers)
        new = list(range(first, first + count))
        rows = [event(number) for number in new]
        if padding:
            rows = [row | {"payload": random.randbytes(padding)} for row in rows]
        staged = table.stage()
        write_events(staged, rows)
        batch = table.last("events") + 1
        table.commit("events", batch, batch, staged)
        self.numbers += new
        self.mirroring.wake()

    def waits(self) -> bool:
        return bool(self.mirroring.facts()["problem"])

    def up_to_date(self) -> bool:
        return bool(self.mirroring.facts()["state"] == "current") and self.copied() == self.numbers

    def copied(self) -> list[int]:
        """Return what a reader of the copy finds; also if the pipeline reaches the server through a slow proxy."""
        return copied(self.read_from, self.kind)


@contextmanager
def running(run: Run) -> Iterator[Run]:
    with closing(run.mirroring):
        run.add()
        run.mirroring.start()
        yield run


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ObjectServer]:
    """A server for one test, with little room."""
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", volumes=3) as server:
        yield server


def test_copies_follow_the_tables_by_themselves(object_server: ObjectServer, tmp_path: Path) -> None:
    with running(Run(tmp_path, object_server.uri("follow"), "iceberg")) as run:
        until(run.up_to_date, "the first batch is copied")
        for _ in range(3):
            run.add()
        until(run.up_to_date, "all batches are copied")
        facts = run.mirroring.facts()
        assert facts["place"].startswith("s3://bucket/follow at http://127.0.0.1:")
        assert (facts["files"], facts["bytes"], facts["failures"], facts["problem"]) == (0, 0, 0, "")
        assert run.mirroring.news() is None


def test_a_server_that_is_killed_delays_copies_and_loses_nothing(own_server: ObjectServer, tmp_path: Path) -> None:
    with running(Run(tmp_path / "tables", own_server.uri("stopped"))) as run:
        until(run.up_to_date, "the first batch is copied")
        own_server.stop()
        for _ in range(3):
            run.add()
        until(run.waits, "it says that it waits")
        until(lambda: run.mirroring.facts()["files"] == 3, "it says how much waits")
        facts = run.mirroring.facts()
        assert "it does not answer" in facts["problem"]
        assert facts["bytes"] == sum(file.bytes for file in run.store.table(EVENTS).files()[1:])
        until(lambda: run.mirroring.facts()["behind_s"] > 0, "it says how long")
        assert run.mirroring.news() == {"query": "mirror", "problem": facts["problem"]}
        run.add()
        own_server.start()
        until(run.up_to_date, "everything is copied")
        assert run.mirroring.facts()["problem"] == ""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_server_may_be_killed_twenty_times_while_it_is_written_to(
    own_server: ObjectServer, tmp_path: Path, kind: str
) -> None:
    rng = random.Random(7)
    with running(Run(tmp_path / "tables", own_server.uri("killed"), kind)) as run:
        until(run.up_to_date, "the first batch is copied")
        for _ in range(20):
            for _ in range(4):
                run.add()
                time.sleep(rng.uniform(0.0, 0.2))
            own_server.stop()
            run.add()
            own_server.start()
            until(run.up_to_date, "everything is copied, each row once")


def test_a_full_server_delays_copies_and_more_room_lets_them_go_on(own_server: ObjectServer, tmp_path: Path) -> None:
    with running(Run(tmp_path / "tables", own_server.uri("full"))) as run:
        while not run.waits():
            run.add(1, padding=700_000)
            assert len(run.numbers) < 60, "the server never became full"
            until(lambda: run.waits() or run.up_to_date(), "it is copied, or it says why not")
        assert "check the server and its free space" in run.mirroring.facts()["problem"]
        run.add()
        own_server.stop()
        own_server.start(volumes=100)
        until(lambda: not run.waits() and run.up_to_date(), "everything is copied")


def test_a_slow_server_delays_no_commit_and_no_stop(object_server: ObjectServer, tmp_path: Path) -> None:
    with closing(SlowProxy(object_server.port)) as proxy:
        run = Run(tmp_path, object_server.uri("slow", port=proxy.port))
        run.read_from = object_server.uri("slow")
        with running(run):
            until(run.up_to_date, "the first batch is copied")
            proxy.slow = True
            run.add(1, padding=3_000_000)  # many minutes at this speed
            until(lambda: proxy.passed > 20_000, "the upload has begun")
            for _ in range(5):
                run.add()
            assert run.mirroring.facts()["files"] >= 1
            assert run.copied() == [0, 1, 2, 3, 4], "readers see the state before"
        proxy.slow = False
        until(lambda: "meshbus-mirror" not in {thread.name for thread in threading.enumerate()}, "the thread ended")
        assert run.copied() == [0, 1, 2, 3, 4], "a transfer that was cancelled commits nothing"
        again = Mirroring(run.store, run.config)
        again.finish(0, lambda: False)
        assert run.copied() == run.numbers


def test_wrong_credentials_are_said_and_right_ones_are_taken_up(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, object_server.uri("refused"))
    run.add()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        _filesystem.cache_clear()
        with pytest.raises(
            PipelineError, match=r"the copy at s3://bucket/refused at .*: cannot .* it refuses the credentials"
        ) as caught:
            run.mirroring.finish(0, lambda: False)
        assert caught.value.fault is PipelineFault.FAILED
    _filesystem.cache_clear()
    Mirroring(run.store, run.config).finish(0, lambda: False)
    assert run.copied() == run.numbers


@pytest.mark.parametrize("kind", KINDS)
def test_credentials_of_a_profile_are_used(
    kind: str, object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "tables", object_server.uri(f"profile/{kind}"), kind)
    run.add()
    with monkeypatch.context() as patch:
        use_profile(patch, tmp_path)
        _filesystem.cache_clear()
        run.mirroring.finish(0, lambda: False)
    _filesystem.cache_clear()
    assert run.copied() == run.numbers


def test_the_end_of_a_run_waits_within_limits_and_ends_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "_FIRST_PAUSE_S", 0.01)
    (tmp_path / "copies").write_text("not a directory")
    run = Run(tmp_path / "tables", (tmp_path / "copies").as_uri())
    run.add()
    with pytest.raises(PipelineError, match="the copy at file://"):
        run.mirroring.finish(2, lambda: False)
    assert run.mirroring.facts()["failures"] == 3
    asked = iter([False, False, True])
    Mirroring(run.store, run.config).finish(10**6, lambda: next(asked, True))
    (tmp_path / "copies").unlink()
    run.mirroring.finish(2, lambda: False)
    assert run.copied() == run.numbers
    assert run.mirroring.facts()["failures"] == 0


def test_what_expires_stays_in_the_copy_until_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = START + timedelta(days=10)
    monkeypatch.setattr(mirroring, "datetime", type("Clock", (), {"now": lambda *_: now}))
    run = Run(tmp_path / "tables", (tmp_path / "copies").as_uri(), keep_days=1.0, mirror_keep_days=11.0)
    for _ in range(2):
        run.add()
    late = START + timedelta(days=1)
    assert run.mirroring.expire(EVENTS, late) == 0, "nothing is removed before it is copied"
    run.mirroring.finish(0, lambda: False)
    assert run.mirroring.expire(EVENTS, late) == 2
    assert run.store.table(EVENTS).files() == []
    run.add()
    run.mirroring.finish(0, lambda: False)
    assert run.copied() == run.numbers
    short = Run(tmp_path / "tables", run.uri, keep_days=1.0, mirror_keep_days=9.0)
    short.mirroring.finish(0, lambda: False)
    assert short.copied() == run.numbers[10:]


def test_tables_that_had_a_copy_do_not_expire_without_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "tables", (tmp_path / "copies").as_uri())
    plain = PipelineConfig(tables=run.config.tables, format="delta")
    assert type(mirroring_of(run.store, plain)) is Unmirrored
    expiring = PipelineConfig(tables=run.config.tables, format="delta", keep_days=1.0)
    with pytest.raises(PipelineError, match=r"have their copy at file://.*; set mirror to that, or remove"):
        mirroring_of(run.store, expiring)
    assert type(mirroring_of(run.store, run.config)) is Mirroring


def test_tables_without_a_copy_expire_as_before(tmp_path: Path) -> None:
    store = Store(tmp_path, FEW, table_format="delta")
    table = store.table(EVENTS)
    staged = table.stage()
    write_events(staged, [event(0)])
    table.commit("events", 0, 0, staged)
    none = mirroring_of(store, PipelineConfig(tables=str(tmp_path), format="delta", keep_days=1.0))
    none.start()
    none.wake()
    assert none.news() is none.facts() is None
    assert none.expire(EVENTS, START + timedelta(days=1)) == 1
    none.finish(0, lambda: False)
    none.close()


def test_the_copy_of_another_pipeline_is_not_touched(tmp_path: Path) -> None:
    uri = (tmp_path / "copies").as_uri()
    run = Run(tmp_path / "tables", uri)
    run.add()
    run.mirroring.finish(0, lambda: False)
    other = Run(tmp_path / "others", uri)
    with pytest.raises(
        PipelineError, match="is not the copy of these tables, but of others; set mirror to an empty place"
    ):
        other.mirroring.finish(0, lambda: False)
    assert run.copied() == run.numbers


def test_sources_are_copied_before_what_is_computed_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "tables", (tmp_path / "copies").as_uri())
    run.add()
    order: list[str] = []

    def noted(what: str, step: Callable[..., bool]) -> Callable[..., bool]:
        def stepped(**options: Any) -> bool:
            order.append(what)
            return step(**options)

        return stepped

    for name, mirror in run.mirroring._mirrors.items():
        monkeypatch.setattr(mirror, "look", noted(f"look {name}", mirror.look))
        monkeypatch.setattr(mirror, "sync", noted(f"sync {name}", mirror.sync))
    run.mirroring.finish(0, lambda: False)
    names = list(FEW)
    assert order == [*(f"look {name}" for name in reversed(names)), *(f"sync {name}" for name in names)]
    assert names[0].startswith("bronze")


def test_objects_that_nothing_refers_to_are_searched_every_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "tables", (tmp_path / "copies").as_uri())
    run.add()
    cleaned: list[str] = []
    mirror = run.mirroring._mirrors[EVENTS]
    monkeypatch.setattr(mirror, "clean", lambda: cleaned.append(EVENTS))
    run.mirroring.finish(0, lambda: False)
    run.mirroring.finish(0, lambda: False)
    assert cleaned == [EVENTS]
    monkeypatch.setattr(mirroring, "_CLEAN_S", 0.0)
    run.mirroring.finish(0, lambda: False)
    assert cleaned == [EVENTS, EVENTS]
    assert list_names(run.uri)


def test_a_pipeline_keeps_copies_of_all_of_its_tables(
    spark: SparkSession, own_server: ObjectServer, tmp_path: Path
) -> None:
    """From a log to copies on a server that is down at first; the rows are compared with those of the log."""
    own_server.stop()
    own_server.start(volumes=100)
    with Redex(tmp_path / "log", background=False) as redex:
        redex.open("a").append_batch([b"x%d" % number for number in range(40)])
    uri = own_server.uri("pipeline")
    config = PipelineConfig(
        tables=str(tmp_path / "tables"), logs=(str(tmp_path / "log"),), format="delta", mirror=uri, restarts=0
    )
    own_server.stop()
    with pytest.raises(PipelineError, match=r"the copy at s3://bucket/pipeline at .*: cannot .* it does not answer"):
        run_pipeline(spark, config, once=True)
    facts = status(config.tables)
    assert facts["state"] == "failed"
    assert (facts["mirror"]["state"], facts["mirror"]["files"]) == ("waiting", None)
    assert tables(spark, config.tables)["silver.events"].count() == 40, "the tables themselves are complete"
    own_server.start(volumes=100)
    with Redex(tmp_path / "log", background=False) as redex:
        redex.open("a").append_batch([b"y%d" % number for number in range(10)])
    assert run_pipeline(spark, config, once=True)["mirror"]["state"] == "current"
    written = sorted(row["payload"] for row in rows_of_logs(tmp_path / "log"))
    assert len(written) == 50
    for name in ("bronze.events", "silver.events"):
        assert sorted(read_copy(below(uri, name), "delta").column("payload").to_pylist()) == written
    gold = read_copy(below(uri, "gold.channel_stats"), "delta").to_pylist()
    assert sum(row["events"] for row in gold) == 50
    present = [name for name in CATALOG if Store(config.tables).table(name).files()]
    for name in present:
        local = sum(pq.read_metadata(file.path).num_rows for file in Store(config.tables).table(name).files())
        assert read_copy(below(uri, name), "delta").num_rows == local, name
    before = list_names(uri)
    run_pipeline(spark, config, once=True)
    assert list_names(uri) == before, "a run without news changes nothing"
