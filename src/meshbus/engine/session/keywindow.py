"""The end of the window of a mesh key: sessions that began with the previous key end with it, unless the key was proved.

A change of the mesh key ends no session. In the window a peer can show that it has the new key: with a new handshake, or
inside a secure session (engine/channels/rotation.py). When the window is over, whoever did not is told goodbye and removed,
so that a node that was left out of the change does not stay for as long as its session lives. Those who have the new key
connect again at once, and reliable streams between meshbus nodes go on.
"""

from __future__ import annotations

from meshbus.engine.base.notices import DownReason
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.presence import Presence
from meshbus.engine.session.service import Context, Service
from meshbus.policy.reason import Reason

MAX_SLEEP_S = 60.0
"""How often the time is looked at while a window is open: the wall clock, by which windows are given, may be set."""


class KeyWindow(Service):
    """Ends the sessions of a mesh key that is not accepted any more."""

    def __init__(self, context: Context) -> None:
        self._keys = context.mesh_keys
        self._peers = context.peers
        self._counters = context.counters
        self._services = context.services
        self._check_at: float | None = None
        if self._keys.previous is not None:
            self.changed(context.started_at)

    def changed(self, now: float) -> None:
        """Check all sessions when the window of the keys ends, or with the next tick if it is over."""
        self._check_at = now + min(self._keys.left_s(now), MAX_SLEEP_S)

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Check a session that took so long to begin that its key is no longer accepted."""
        if self._is_retired(peer, now):
            self._check_at = now

    def next_timer(self) -> float | None:
        """Return when to look at the sessions, or None."""
        return self._check_at

    def tick(self, now: float, out: Output) -> None:
        """End the sessions whose key is not accepted any more."""
        if self._check_at is None or now < self._check_at:
            return
        if self._keys.left_s(now) > 0:
            self.changed(now)
            return
        self._check_at = None
        self._keys.retire()  # a clock that is set back does not open the window again
        for node_id in [peer.node_id for peer in self._peers if self._is_retired(peer, now)]:
            self._counters.count(Reason.REFUSE_RETIRED_KEY)
            self._services[Presence].part_from(node_id, DownReason.RETIRED, now, out)

    def _is_retired(self, peer: Peer, now: float) -> bool:
        mesh_key = peer.link.mesh_key
        return bool(mesh_key) and not self._keys.accepts(mesh_key, now)
