"""A query is restarted within limits, and ends only if everything was read."""

from typing import Any

import pytest

from meshbus.spark.run.supervision import State, SupervisedQuery


class Hanging:
    """A query of Spark that neither fails nor makes progress."""

    isActive = True  # noqa: N815 - Spark's name
    lastProgress = None  # noqa: N815 - Spark's name

    def __init__(self, message: str) -> None:
        self.status = {"message": message}
        self.stopped = 0

    def exception(self) -> None: ...

    def stop(self) -> None:
        self.stopped += 1


def test_a_query_that_hangs_is_started_again_and_given_up_in_the_end() -> None:
    hanging = Hanging("Initializing sources")
    query = SupervisedQuery("events", lambda: hanging)  # type: ignore[arg-type, return-value]
    starts = 0
    for now in range(100):
        query.poll(float(now), restarts=2, stall_s=10.0)
        starts += query.state is State.RUNNING and query._progress_at == now
    assert (hanging.stopped, query.restarts, starts) == (3, 2, 3)
    assert query.state is State.FAILED
    assert query.problem == "no progress for 10 s"


@pytest.mark.parametrize(("ended", "state"), [(True, State.DONE), (False, State.WAITING)])
def test_a_query_that_ends_must_have_done_everything(ended: bool, state: State) -> None:
    gone = Hanging("Stopped")
    gone.isActive = False
    query = SupervisedQuery("events", lambda: gone, ended=lambda: ended)  # type: ignore[arg-type, return-value]
    query.poll(0.0, restarts=2, stall_s=10.0)
    assert query.state is state


class Dying(Hanging):
    """A query that fails while it is looked at."""

    looked = 0

    def exception(self) -> Any:
        self.looked += 1
        self.isActive = False
        return None if self.looked == 1 else RuntimeError("the worker died")


def test_a_query_that_fails_while_it_is_looked_at_has_not_ended() -> None:
    query = SupervisedQuery("packets", lambda: Dying("Getting offsets"), ended=lambda: True)  # type: ignore[arg-type, return-value]
    for now in range(2):
        query.poll(float(now), restarts=2, stall_s=10.0)
    assert (query.state, query.problem) == (State.WAITING, "the worker died")


def test_a_query_that_waits_for_rows_is_left_alone() -> None:
    waiting = Hanging("Waiting for data to arrive")
    query = SupervisedQuery("events", lambda: waiting)  # type: ignore[arg-type, return-value]
    for now in range(100):
        query.poll(float(now), restarts=2, stall_s=10.0)
    assert (waiting.stopped, query.state) == (0, State.RUNNING)


def batch_of(number: int, rows: int) -> dict[str, Any]:
    """A progress report of Spark."""
    offset = '{"v": 1, "next": {"a": %d}}'
    return {
        "timestamp": f"t{number}",
        "batchId": number,
        "numInputRows": rows,
        "processedRowsPerSecond": 12.34,
        "batchDuration": 5,
        "sources": [{"endOffset": offset % rows, "latestOffset": offset % (rows + 3)}],
    }


class Reading(Hanging):
    """A query that completes batches."""

    def __init__(self) -> None:
        super().__init__("Processing new data")
        self.recentProgress: list[dict[str, Any]] = []

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # type: ignore[override] # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.recentProgress else None


def test_completed_batches_are_returned_once_and_count_as_progress() -> None:
    reading = Reading()
    query = SupervisedQuery("events", lambda: reading)  # type: ignore[arg-type, return-value]
    assert query.poll(0.0, restarts=0, stall_s=10.0) == []
    reading.recentProgress += [batch_of(0, 5), batch_of(1, 0), batch_of(2, 7)]
    batches = query.poll(9.0, restarts=0, stall_s=10.0)
    assert [(batch["batch"], batch["rows"], batch["lag"]) for batch in batches] == [(0, 5, 3), (2, 7, 3)]
    assert query.poll(18.0, restarts=0, stall_s=10.0) == []
    assert query.state is State.RUNNING
    facts = query.facts()
    assert (facts["batch"], facts["rows"], facts["rows_per_s"], facts["lag"]) == (2, 12, 12.3, 3)


def test_a_query_does_not_start_before_it_may() -> None:
    query = SupervisedQuery("events", lambda: pytest.fail("it was started"))
    assert query.poll(0.0, restarts=0, stall_s=10.0, may_start=False) == []
    assert query.state is State.WAITING


def test_a_query_that_cannot_be_started_is_tried_again_after_a_growing_pause() -> None:
    starts: list[float] = []

    def start() -> Any:
        starts.append(now)
        raise RuntimeError("no such file")

    query = SupervisedQuery("events", start)
    for second in range(200):
        now = float(second)
        query.poll(now, restarts=7, stall_s=10.0)
    assert starts == [0, 1, 3, 7, 15, 31, 61, 91]
    assert (query.state, query.problem) == (State.FAILED, "no such file")


def test_a_stopped_query_is_done() -> None:
    reading = Reading()
    query = SupervisedQuery("events", lambda: reading)  # type: ignore[arg-type, return-value]
    query.poll(0.0, restarts=0, stall_s=10.0)
    query.stop()
    assert (reading.stopped, query.state) == (1, State.DONE)


def test_what_waits_is_known_before_the_first_batch() -> None:
    query = SupervisedQuery("events", lambda: Hanging("Initializing sources"), unread=lambda: 1000)  # type: ignore[arg-type, return-value]
    assert query.facts()["lag"] is None
    query.poll(0.0, restarts=2, stall_s=10.0)
    assert query.facts()["lag"] == 1000
    unknown = SupervisedQuery("events", lambda: Hanging("Initializing sources"))  # type: ignore[arg-type, return-value]
    unknown.poll(0.0, restarts=2, stall_s=10.0)
    assert unknown.facts()["lag"] is None
