"""The roster: which peers get the events of which of our channels, all of them or a share.

A peer is in a channel in one *mode*: broadcast (every event) or a named queue group (each event goes to one member).
Subscribing in another mode moves it. Several *requests* may hold one peer in one channel: its plain subscribe, and
each interest by prefix that matched the channel (engine/channels/interest_server.py). The latest decides the mode, and the peer leaves
when the last is released. Whether a peer may be here at all is decided in engine/channels/authorize.py, which also bounds how
many channels a peer is in.

Groups are served least recently served first. A member that the caller refuses for one publish is passed over and the
next takes its place, so one member without permission does not swallow the group's events.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from meshbus.engine.streams.joined import Request
from meshbus.names.channel import ChannelName

BROADCAST = ""
"""The mode of a peer that is in no queue group."""


class _Channel:
    __slots__ = ("broadcast", "groups")

    def __init__(self) -> None:
        self.broadcast: dict[int, None] = {}
        """In order of arrival."""
        self.groups: dict[str, OrderedDict[int, None]] = {}
        """Members in the order in which they are served next."""


class SubscriberRoster:
    """Subscribers by channel, and channels by subscriber."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change, for those who keep something derived."""
        self._channels: dict[str, _Channel] = {}
        self._peers: dict[int, dict[ChannelName, dict[Request, str]]] = {}
        """Per channel of a peer, the requests that hold it there and their modes, the latest last."""

    def __len__(self) -> int:
        """Count the channels that somebody subscribed to."""
        return len(self._channels)

    def add(self, channel: ChannelName, node_id: int, queue_group: str = BROADCAST, *, request: Request = None) -> bool:
        """Put a peer into a channel; False when it was there in the same mode."""
        requests = self._peers.setdefault(node_id, {}).setdefault(channel, {})
        before = _mode(requests)
        requests.pop(request, None)  # so that this one is the latest
        requests[request] = queue_group
        return self._move(channel, node_id, before, queue_group)

    def release(self, channel: ChannelName, node_id: int, *, request: Request = None) -> bool:
        """End one request for a channel; True when the peer left the channel by it."""
        requests = self._peers.get(node_id, {}).get(channel)
        if requests is None or request not in requests:
            return False
        if len(requests) == 1:
            return self.remove(channel, node_id)
        before = _mode(requests)
        del requests[request]
        self._move(channel, node_id, before, _mode(requests))
        return False

    def remove(self, channel: ChannelName, node_id: int) -> bool:
        """Take a peer out of a channel, whatever holds it there; False when it was not in it."""
        channels = self._peers.get(node_id, {})
        requests = channels.pop(channel, None)
        if requests is None:
            return False
        if not channels:
            del self._peers[node_id]
        self._move(channel, node_id, _mode(requests), None)
        return True

    def remove_peer(self, node_id: int) -> list[ChannelName]:
        """Take a peer out of every channel, and give those it was in."""
        channels = self.channels_of(node_id)
        for channel in channels:
            self.remove(channel, node_id)
        return channels

    def dispatch(  # hot: bench_publish
        self, channel: str, allows: Callable[[int], bool] | None = None
    ) -> list[int]:
        """Return the peers that one publish goes to: everyone in broadcast mode, and one member of each group.

        `allows` is asked about each peer in turn; whom it refuses gets nothing this time. Groups move on to their next
        member by this call.
        """
        entry = self._channels.get(channel)
        if entry is None:
            return []
        legs = list(entry.broadcast) if allows is None else [peer for peer in entry.broadcast if allows(peer)]
        for group in entry.groups.values():
            member = _next_member(group, allows)
            if member is not None:
                legs.append(member)
        return legs

    def peers(self) -> list[int]:
        """List the peers that are in some channel."""
        return list(self._peers)

    def channels(self) -> list[ChannelName]:
        """List the channels that somebody subscribed to, in order."""
        return sorted({channel for channels in self._peers.values() for channel in channels})

    def channels_of(self, node_id: int) -> list[ChannelName]:
        """List the channels of a peer, in the order of its subscribing."""
        return list(self._peers.get(node_id, ()))

    def count(self, node_id: int) -> int:
        """Count the channels of a peer."""
        return len(self._peers.get(node_id, ()))

    def members(self, channel: str) -> list[int]:
        """List the subscribers of a channel in all modes, ascending."""
        entry = self._channels.get(channel)
        if entry is None:
            return []
        return sorted([*entry.broadcast, *(member for group in entry.groups.values() for member in group)])

    def groups(self, channel: str) -> dict[str, list[int]]:
        """Return the queue groups of a channel and their members, ascending."""
        entry = self._channels.get(channel)
        return {} if entry is None else {name: sorted(group) for name, group in sorted(entry.groups.items())}

    def has_groups(self, channel: str) -> bool:
        """Return whether the subscribers of a channel are served in turns."""
        entry = self._channels.get(channel)
        return entry is not None and bool(entry.groups)

    def group_of(self, channel: ChannelName, node_id: int) -> str | None:
        """Return the queue group of a peer in a channel: empty for broadcast, None when it is not subscribed."""
        return _mode(self._peers.get(node_id, {}).get(channel, {}))

    def holds(self, channel: ChannelName, node_id: int, request: Request = None) -> bool:
        """Return whether this request holds a peer in a channel."""
        return request in self._peers.get(node_id, {}).get(channel, {})

    def _move(self, channel: ChannelName, node_id: int, before: str | None, after: str | None) -> bool:
        """Change the mode of a peer; None is the mode of a peer that is not there. False when nothing changes."""
        if before == after:
            return False
        self.version += 1
        entry = self._channels.get(channel)
        if entry is None:
            entry = self._channels[channel] = _Channel()
        if before == BROADCAST:
            del entry.broadcast[node_id]
        elif before is not None:
            del entry.groups[before][node_id]
            if not entry.groups[before]:
                del entry.groups[before]
        if after == BROADCAST:
            entry.broadcast[node_id] = None
        elif after is not None:
            entry.groups.setdefault(after, OrderedDict())[node_id] = None
        if not entry.broadcast and not entry.groups:
            del self._channels[channel]
        return True


class RosterView:
    """The roster for reading: what `node.roster` gives, always up to date."""

    __slots__ = ("_roster",)

    def __init__(self, roster: SubscriberRoster) -> None:
        self._roster = roster

    def __len__(self) -> int:
        """Count the channels that somebody subscribed to."""
        return len(self._roster)

    def __iter__(self) -> Iterator[ChannelName]:
        """Go through the channels that somebody subscribed to, in order."""
        return iter(self._roster.channels())

    def __contains__(self, channel: str) -> bool:
        return bool(self._roster.members(channel))

    def __repr__(self) -> str:
        return f"RosterView({ {str(channel): self.members(channel) for channel in self} })"

    def members(self, channel: str) -> list[int]:
        """List the subscribers of a channel by node id, in broadcast mode and in groups alike."""
        return self._roster.members(channel)

    def groups(self, channel: str) -> dict[str, list[int]]:
        """Return the queue groups of a channel and their members."""
        return self._roster.groups(channel)

    def channels_of(self, node_id: int) -> list[ChannelName]:
        """List the channels a peer subscribed to."""
        return self._roster.channels_of(node_id)


def _mode(requests: dict[Request, str]) -> str | None:
    return next(reversed(requests.values()), None)


def _next_member(group: OrderedDict[int, None], allows: Callable[[int], bool] | None) -> int | None:
    """Choose the member served least recently among those allowed; those passed over keep their place."""
    for member in group:
        if allows is None or allows(member):
            group.move_to_end(member)
            return member
    return None
