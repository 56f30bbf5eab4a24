"""What a node reports about channels: its own, those that it receives, and those that other nodes announce."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from meshbus.engine.base.tally import Tally, Volume
from meshbus.engine.core import Engine
from meshbus.policy.tag import announced_channels


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one channel at one moment, as one node sees it."""

    channel: str
    published: bool
    """Whether this node publishes on it, or has it configured by name."""
    subscribers: int
    """Nodes that have subscribed to it here."""
    subscribed: bool
    """Whether a subscription of this node covers it."""
    publishers: tuple[int, ...]
    """Other nodes that announce that they publish on it."""
    published_events: int | None
    """Events that this node published on it since it was opened; None if it is not counted by itself."""
    published_bytes: int | None
    received_events: int | None
    """Events that this node received on it since it was opened; None if it is not counted by itself."""
    received_bytes: int | None


def channels_known(engine: Engine, now: float, topics: Iterable[str], received: Tally) -> list[ChannelInfo]:
    """Return every channel that a node knows by name, sorted; `topics` are what it has subscribed to."""
    elsewhere: defaultdict[str, list[int]] = defaultdict(list)
    for node_id, capabilities in engine.directory.known(now).items():
        if node_id != engine.identity.node_id:
            for channel in announced_channels(capabilities.tags):
                elsewhere[channel].append(node_id)
    sent, got = _by_channel(engine.publications.tally), _by_channel(received)
    wanted = tuple(topics)
    own, roster = engine.interests.channels, engine.admission.roster
    exact = {topic for topic in wanted if not topic.endswith("/")}
    names = {*map(str, own), *map(str, roster.channels()), *elsewhere, *sent, *got, *exact} - {""}
    return [
        ChannelInfo(
            channel=name,
            published=name in own,
            subscribers=len(roster.members(name)),
            subscribed=any(name == topic or (topic.endswith("/") and name.startswith(topic)) for topic in wanted),
            publishers=tuple(sorted(elsewhere.get(name, ()))),
            **_counts("published", name, sent),
            **_counts("received", name, got),
        )
        for name in sorted(names)
    ]


def _by_channel(tally: Tally) -> dict[str, Volume]:
    """Return the counts by channel; the empty name stands for the channels that are counted together."""
    return {volume.channel or "": volume for volume in tally}


def _counts(way: str, channel: str, volumes: dict[str, Volume]) -> dict[str, int | None]:
    volume = volumes.get(channel)
    if volume is None:
        unknown = None if "" in volumes else 0  # a channel that is not counted by itself may have had traffic
        return {f"{way}_events": unknown, f"{way}_bytes": unknown}
    return {f"{way}_events": volume.events, f"{way}_bytes": volume.bytes}
