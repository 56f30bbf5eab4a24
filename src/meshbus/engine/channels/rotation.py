"""Rotation of secrets inside sessions (0x4D0D): peers show each other that they have the new mesh key, and renew tokens.

The keys of a secure session do not depend on the mesh key, so there is no reason to end one because the mesh key changes.
But a node that was left out must not stay. So both sides prove the new key to each other:

    this node gets a new key ──► PROOF to every peer whose session began with another key
    PROOF ──► right for our current key? ──► the session counts as one of that key; ANSWER with ours
                 └── no ──► counted; the peer has the key before us, and our own PROOF follows when we have it
    ANSWER ──► right? ──► the session counts as one of that key

The later of two nodes always sends a PROOF that the earlier one understands, so nothing has to be repeated: the stream is
reliable. Only secure sessions are kept in this way. In any other, whoever has the old key could compute the session's keys:
such sessions end with the window (engine/session/keywindow.py), and the next handshake uses the new key.

Tokens are in engine/channels/renewal.py.
"""

from __future__ import annotations

from meshbus.engine.base.packets import Output
from meshbus.engine.channels.renewal import Renewals
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.streams import Streams
from meshbus.errors import Backpressure, RemoteProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.keyproof import prove_key, proves_key
from meshbus.wire.messages.rotation import (
    KeyProof,
    NotRenewed,
    Present,
    Renew,
    Renewed,
    RotationMessage,
    decode_rotation,
    encode_rotation,
)


class Rotation(Service):
    """Proofs of the mesh key, and messages about tokens."""

    def __init__(self, context: Context) -> None:
        self._identity = context.identity
        self._keys = context.mesh_keys
        self._peers = context.peers
        self._counters = context.counters
        self._streams = context.services[Streams]
        self.renewals = Renewals(context, self._send)

    def keys_changed(self, now: float, out: Output) -> None:
        """Prove the new key to all peers whose sessions began with another one."""
        for peer in self._peers:
            self._prove(peer, now, out)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Prove the key to a peer whose session began with the previous one, and ask it for the tokens that are due."""
        self._prove(peer, now, out)
        self.renewals.agreed(peer, now, out)

    def next_timer(self) -> float | None:
        """Return when the next token is to be renewed, or None."""
        return self.renewals.next_timer()

    def tick(self, now: float, out: Output) -> None:
        """Renew the tokens that are due."""
        self.renewals.tick(now, out)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message of a peer."""
        try:
            decoded = decode_rotation(message)
        except RemoteProtocolError:
            self._counters.count(Reason.ROTATION_MALFORMED)
            return
        if not _is_usable(peer):
            self._counters.count(Reason.ROTATION_INSECURE)
            return
        match decoded:
            case KeyProof():
                self._on_proof(peer, decoded, now, out)
            case Renew(token=token):
                self.renewals.on_renew(peer, token, now, out)
            case Renewed(token=token):
                self.renewals.on_renewed(peer, token, now, out)
            case NotRenewed():
                self.renewals.on_refused(peer, decoded, out)
            case Present(token=token):
                self.renewals.on_present(peer, token, now)

    def _on_proof(self, peer: Peer, shown: KeyProof, now: float, out: Output) -> None:
        link = peer.link
        if not proves_key(shown.proof, self._keys.current, link.handshake_hash, peer.node_id, self._identity.node_id):
            self._counters.count(Reason.ROTATION_UNKNOWN_KEY)
        else:
            link.mesh_key = self._keys.current
            self._counters.add("rotation", "key_proved")
            if not shown.answers:
                self._send(peer, KeyProof(self._own_proof(peer), answers=True), now, out)

    def _prove(self, peer: Peer, now: float, out: Output) -> None:
        if peer.link.mesh_key != self._keys.current:
            self._send(peer, KeyProof(self._own_proof(peer)), now, out)

    def _own_proof(self, peer: Peer) -> bytes:
        return prove_key(self._keys.current, peer.link.handshake_hash, self._identity.node_id, peer.node_id)

    def _send(self, peer: Peer, message: RotationMessage, now: float, out: Output) -> None:
        """Send a message to a peer that takes it; others get none."""
        if not _is_usable(peer):
            return
        try:
            self._streams.send_reliable(peer, Subprotocol.ROTATION, encode_rotation(message), now, out)
        except Backpressure:
            # A session that was to be kept ends with the window and begins again; a renewal is asked for again.
            self._counters.count(Reason.ROTATION_UNSENT)


def _is_usable(peer: Peer) -> bool:
    """Return whether secrets may be shown to a peer: the session is secure, and it agreed."""
    return peer.link.epoch > 0 and peer.uses(Subprotocol.ROTATION)
