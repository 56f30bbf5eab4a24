"""Roster: the subscribers of this node's channels, with their queue groups (policy.md §5.1).

A peer is in a channel in one *mode*: broadcast (it gets every event) or a named queue group (each event goes to one
member). Subscribing in another mode moves it. Several *requests* may hold a peer in a channel: its Subscribe, and each
interest whose prefix matches the channel (engine/channels/interest_server.py). The latest request decides the mode, and
the peer leaves when the last one is released.

In a group, the member that was served least recently is next. A member that the caller refuses for one publish is
skipped and the next one takes its place, so that a member without permission does not cost the group its events.
(A 0.23 node chooses first and does not replace a refused member.)

Permissions are not checked here: engine/channels/admission.py decides who is added, and limits the channels of a peer.
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
        """Node ids in the order of subscription."""
        self.groups: dict[str, OrderedDict[int, None]] = {}
        """Members by group, the one to be served next first."""


class SubscriberRoster:
    """Subscribers by channel, and channels by subscriber."""

    def __init__(self) -> None:
        self.version = 0
        """Incremented by every change, so that derived data can be kept until then."""
        self._channels: dict[str, _Channel] = {}
        self._peers: dict[int, dict[ChannelName, dict[Request, str]]] = {}
        """By peer and channel: the requests that hold the peer there, with their modes, the latest last."""

    def __len__(self) -> int:
        """Return the number of channels with subscribers."""
        return len(self._channels)

    def add(self, channel: ChannelName, node_id: int, queue_group: str = BROADCAST, *, request: Request = None) -> bool:
        """Add a peer to a channel; return False if it was there in the same mode."""
        requests = self._peers.setdefault(node_id, {}).setdefault(channel, {})
        before = _mode(requests)
        requests.pop(request, None)  # the order of insertion matters: this request becomes the latest
        requests[request] = queue_group
        return self._move(channel, node_id, before, queue_group)

    def release(self, channel: ChannelName, node_id: int, *, request: Request = None) -> bool:
        """End one request for a channel, and return whether the peer left the channel."""
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
        """Remove a peer from a channel with all its requests; return False if it was not in it."""
        channels = self._peers.get(node_id, {})
        requests = channels.pop(channel, None)
        if requests is None:
            return False
        if not channels:
            del self._peers[node_id]
        self._move(channel, node_id, _mode(requests), None)
        return True

    def rename(self, old: int, new: int) -> list[ChannelName]:
        """Keep the place of a subscriber that goes on under another id in its channels, and return these."""
        channels = self._peers.pop(old, {})
        for channel, requests in channels.items():
            self._move(channel, old, _mode(requests), None)
            for request, group in requests.items():
                self.add(channel, new, group, request=request)
        return list(channels)

    def remove_peer(self, node_id: int) -> list[ChannelName]:
        """Remove a peer from all channels, and return those that it was in."""
        channels = self.channels_of(node_id)
        for channel in channels:
            self.remove(channel, node_id)
        return channels

    def dispatch(  # hot: bench_publish
        self, channel: str, allows: Callable[[int], bool] | None = None
    ) -> list[int]:
        """Return the peers that get one publish: all in broadcast mode, and one member of each group.

        Peers for which `allows` returns False are left out. The call counts as a turn of each group.
        """
        entry = self._channels.get(channel)
        if entry is None:
            return []
        legs = list(entry.broadcast) if allows is None else [peer for peer in entry.broadcast if allows(peer)]
        # policy.md §5.1: one member of each group. Here a member that is refused is replaced by the next one.
        for group in entry.groups.values():
            member = _next_member(group, allows)
            if member is not None:
                legs.append(member)
        return legs

    def peers(self) -> list[int]:
        """Return the peers that are in at least one channel."""
        return list(self._peers)

    def channels(self) -> list[ChannelName]:
        """Return the channels with subscribers, sorted."""
        return sorted({channel for channels in self._peers.values() for channel in channels})

    def channels_of(self, node_id: int) -> list[ChannelName]:
        """Return the channels of a peer, in the order of subscription."""
        return list(self._peers.get(node_id, ()))

    def count(self, node_id: int) -> int:
        """Return the number of channels of a peer."""
        return len(self._peers.get(node_id, ()))

    def members(self, channel: str) -> list[int]:
        """Return the subscribers of a channel in all modes, sorted by node id."""
        entry = self._channels.get(channel)
        if entry is None:
            return []
        return sorted([*entry.broadcast, *(member for group in entry.groups.values() for member in group)])

    def groups(self, channel: str) -> dict[str, list[int]]:
        """Return the queue groups of a channel with their members, both sorted."""
        entry = self._channels.get(channel)
        return {} if entry is None else {name: sorted(group) for name, group in sorted(entry.groups.items())}

    def has_groups(self, channel: str) -> bool:
        """Return whether a channel has queue groups, so that its publishes go to changing subscribers."""
        entry = self._channels.get(channel)
        return entry is not None and bool(entry.groups)

    def group_of(self, channel: ChannelName, node_id: int) -> str | None:
        """Return the queue group of a peer in a channel: empty for broadcast, None if it is not subscribed."""
        return _mode(self._peers.get(node_id, {}).get(channel, {}))

    def holds(self, channel: ChannelName, node_id: int, request: Request = None) -> bool:
        """Return whether a request holds a peer in a channel."""
        return request in self._peers.get(node_id, {}).get(channel, {})

    def _move(self, channel: ChannelName, node_id: int, before: str | None, after: str | None) -> bool:
        """Change the mode of a peer, where None means not subscribed; return False if nothing changes."""
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
        # policy.md §5.1: empty groups and channels are removed, and the turns of a group begin anew.
        if not entry.broadcast and not entry.groups:
            del self._channels[channel]
        return True


class RosterView:
    """Read-only live view of the roster: the value of `node.roster`."""

    __slots__ = ("_roster",)

    def __init__(self, roster: SubscriberRoster) -> None:
        self._roster = roster

    def __len__(self) -> int:
        """Return the number of channels with subscribers."""
        return len(self._roster)

    def __iter__(self) -> Iterator[ChannelName]:
        """Iterate over the channels with subscribers, sorted."""
        return iter(self._roster.channels())

    def __contains__(self, channel: str) -> bool:
        return bool(self._roster.members(channel))

    def __repr__(self) -> str:
        return f"RosterView({ {str(channel): self.members(channel) for channel in self} })"

    def members(self, channel: str) -> list[int]:
        """Return the subscribers of a channel, in broadcast mode and in groups, sorted by node id."""
        return self._roster.members(channel)

    def groups(self, channel: str) -> dict[str, list[int]]:
        """Return the queue groups of a channel with their members."""
        return self._roster.groups(channel)

    def channels_of(self, node_id: int) -> list[ChannelName]:
        """Return the channels that a peer subscribed to."""
        return self._roster.channels_of(node_id)


def _mode(requests: dict[Request, str]) -> str | None:
    return next(reversed(requests.values()), None)


def _next_member(group: OrderedDict[int, None], allows: Callable[[int], bool] | None) -> int | None:
    """Return the allowed member that was served least recently; members that are skipped keep their place."""
    for member in group:
        if allows is None or allows(member):
            group.move_to_end(member)
            return member
    return None
