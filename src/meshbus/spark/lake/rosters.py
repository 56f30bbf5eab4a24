"""How many subscribers each event had: event counts, with the roster that the publisher had at the time.

A publisher writes its rosters into its census (log/census.py) whenever they change, by the clock that also stamps its
events. In nearly every minute no roster changes, so all events of the minute have the roster of its start, and counts by
minute are enough. Only events of a minute in which it changed are compared one by one, and only those rows are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.log.census import FactKind
from meshbus.spark.lake.grouping import Groups, added, latest, numbered, stacked
from meshbus.spark.lake.minutes import MINUTE_NS, hours_of
from meshbus.spark.lake.narrow import near_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.spark.lake.narrow import Scan

_WHOSE = ["channel", "origin"]
_STATE = ["subscribers", "copies"]


def with_rosters(events: Any, census: Any, rows: Scan) -> Any:
    """Return numbers of events by hour, channel, subscribers and copies; both are null where no roster is recorded.

    `events` are event counts, and `rows` the events themselves.
    """
    import pyarrow as pa

    keys = {name: events[name] for name in ("hour", *_WHOSE)} | {"minute": events["sent_minute"].cast(pa.int64())}
    sent = added(keys, {"events": (events["events"], "sum")})
    rosters = _Rosters(sent, census)
    # Without a time of publication an event has no roster.
    is_timed = sent["minute"].is_valid().to_numpy()
    minute = sent["minute"].fill_null(0).to_numpy() * 1000
    at_start, at_end = (rosters.at(sent, time) for time in (minute, minute + (MINUTE_NS - 1)))
    is_steady = ~is_timed | (at_start == at_end)
    steady = rosters.joined(sent.select(["hour", "channel", "events"]), np.where(is_timed, at_start, -1))
    steady = steady.filter(pa.array(is_steady))
    changed = sent.append_column("_minute", pa.array(minute)).filter(pa.array(~is_steady))
    return stacked(steady, _compared(rosters, changed, rows)) if len(changed) else steady


def _compared(rosters: _Rosters, changed: Any, rows: Scan) -> Any:
    """Return the events of minutes in which a roster changed, each with the one that held when it was published."""
    import pyarrow as pa
    import pyarrow.compute as pc

    minutes = changed["_minute"].unique()
    where = near_steps(pc.field("ts_ns"), minutes.to_pylist(), MINUTE_NS)
    where &= pc.field("channel").isin(changed["channel"].unique())
    near = rows.rows([*_WHOSE, "ts_ns", "recv_ts"], where)
    near = near.append_column("hour", hours_of(near["recv_ts"]))
    near = near.append_column("_minute", pa.array(near["ts_ns"].to_numpy() // MINUTE_NS * MINUTE_NS))
    # Exactly what was left out above: other events of these minutes and channels are counted there.
    keys = ["hour", *_WHOSE, "_minute"]
    both = numbered(stacked(changed.select(keys), near.select(keys)), keys)
    near = near.filter(pa.array(np.isin(both[len(changed) :], both[: len(changed)])))
    found = rosters.joined(near.select(["hour", "channel"]), rosters.at(near, near["ts_ns"].to_numpy()))
    return added({name: found[name] for name in found.column_names}, {"events": (None, "count_all")})


class _Rosters:
    """What publishers wrote about the subscribers of some channels, as changes in the order of time."""

    def __init__(self, sent: Any, census: Any) -> None:
        import pyarrow as pa

        self._channels = Groups(sent, _WHOSE).keys
        facts = _facts(self._channels, census)
        numbers = numbered(stacked(self._channels, facts.select(_WHOSE)), _WHOSE)[len(self._channels) :]
        order = np.lexsort((facts["_seq"].to_numpy(), facts["_order"].to_numpy(), facts["_at"].to_numpy(), numbers))
        facts, numbers = facts.take(order), numbers[order]
        at = facts["_at"].to_numpy()
        # Of several facts of one time, the last holds. A snapshot repeats what is known, which is no change.
        is_last = np.ones(len(at), np.bool_)
        is_last[:-1] = (at[1:] != at[:-1]) | (numbers[1:] != numbers[:-1])
        facts, numbers = facts.filter(pa.array(is_last)), numbers[is_last]
        state = np.stack([numbers, *(facts[name].to_numpy() for name in _STATE)])
        is_new = np.ones(len(numbers), np.bool_)
        is_new[1:] = (state[:, 1:] != state[:, :-1]).any(axis=0)
        self._whose, self._changes = numbers[is_new], facts.filter(pa.array(is_new))

    def at(self, rows: Any, time: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of the last change until a time for the channel and publisher of each row, or -1."""
        owners = numbered(stacked(self._channels, rows.select(_WHOSE)), _WHOSE)[len(self._channels) :]
        return latest(self._whose, self._changes["_at"].to_numpy(), owners, time)[0]

    def joined(self, rows: Any, places: NDArray[np.int64]) -> Any:
        """Return rows with the roster in a place; null if that is -1."""
        import pyarrow as pa

        for name in _STATE:
            rows = rows.append_column(name, self._changes[name].take(pa.array(places, mask=places < 0)))
        return rows


def _facts(channels: Any, census: Any) -> Any:
    """Return what publishers wrote about the subscribers of some channels; a snapshot comes before a roster."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def of_kind(kind: FactKind, columns: list[str]) -> Any:
        found = census.filter(pc.equal(census["kind"], kind.value)).select([*columns, "ts_ns", "seq"])
        return found.rename_columns([*columns, "_at", "_seq"])

    starts = of_kind(FactKind.SNAPSHOT, ["recorder", "origin"])
    none = {"_order": 0, "subscribers": 0, "copies": 0}
    # After a snapshot, a channel has no subscribers until a roster says otherwise.
    empty = _with(starts.drop_columns("recorder").join(channels, "origin", join_type="inner"), none)
    recorders = starts.select(["recorder", "origin"]).group_by(["recorder", "origin"]).aggregate([])
    told = of_kind(FactKind.ROSTER, ["recorder", "channel", *_STATE]).join(recorders, "recorder", join_type="inner")
    told = _with(told.drop_columns("recorder"), {"_order": 1})
    return pa.concat_tables([empty, told.select(empty.column_names)])


def _with(rows: Any, values: dict[str, int]) -> Any:
    import pyarrow as pa

    for name, value in values.items():
        rows = rows.append_column(name, pa.array(np.full(len(rows), value, np.int32)))
    return rows
