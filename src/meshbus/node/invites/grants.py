"""What a newcomer is given: its certificate, the mesh key, the issuers of the fleet and the nodes to connect to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meshbus.config.node import NodeConfig
from meshbus.config.spelling import Endpoint
from meshbus.names.identity import Identity, derive_node_id
from meshbus.policy.invites import Invite
from meshbus.wire.certificate import Certificate, encode_certificate
from meshbus.wire.joining import Granted, GrantedPeer

MOST_PEERS = 16
"""Peers that a newcomer gets, besides the inviting node. Our choice: from some of them it reaches all others."""
MOST_ISSUERS = 256
"""Issuers of permission tokens that a newcomer gets; more come with the policy of the fleet."""
EARLIER_S = 300
"""How much earlier than now a certificate begins, for machines whose clocks are late."""

_ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104 - not to listen there, but to recognize it


class NodeState(NamedTuple):
    """What newcomers need to know of the inviting node, and changes while it runs."""

    psk: Callable[[], bytes]
    """Returns the mesh key."""
    trusted_issuers: Callable[[], tuple[bytes, ...]]
    """Returns the issuers of permission tokens of its policy."""
    address: Callable[[], Endpoint]
    """Returns where it listens for the mesh."""
    revoked: Callable[[int], bool]
    """Returns whether the node with this id was revoked."""
    psk_root: bytes = b""
    """The first key of the mesh, if the mesh key has been replaced since."""


class Grants:
    """Makes the answer to newcomers that are admitted."""

    def __init__(self, config: NodeConfig, issuer: Identity, state: NodeState) -> None:
        self._config = config
        self._issuer = issuer
        self._state = state

    @property
    def issuer(self) -> bytes:
        """Entity id of the issuer that signs here."""
        return self._issuer.entity_id

    def revoked(self, entity_id: bytes) -> bool:
        """Return whether an issuer of the fleet revoked this node."""
        return self._state.revoked(derive_node_id(entity_id))

    def grant(self, invite: Invite, now: float) -> Granted:
        """Certify the node that an invite is bound to, and return all that it needs."""
        spec, subject = invite.spec, invite.subject
        assert subject is not None, "an invite is granted to a node"
        certificate = Certificate(
            issuer=self.issuer,
            subject=subject,
            serial=int.from_bytes(invite.invite_id, "little"),
            not_before=int(now) - EARLIER_S,
            not_after=int(now) + spec.valid_s,
            subnet=spec.subnet,
            name=spec.name,
            tags=spec.tags,
        )
        peers = [entry for entry in self._config.peers if entry.node_id is None and entry.public_key != subject]
        return Granted(
            certificate=encode_certificate(certificate.signed_by(self._issuer)),
            psk=self._state.psk(),
            psk_root=self._state.psk_root,
            address=self._own_address(),
            peers=tuple(GrantedPeer(str(entry.address), entry.public_key) for entry in peers[:MOST_PEERS]),
            trusted_issuers=tuple(dict.fromkeys((self.issuer, *self._state.trusted_issuers())))[:MOST_ISSUERS],
            policy_issuers=self._config.policy_issuers,
            secure=str(self._config.secure),
        )

    def _own_address(self) -> str:
        """Return where newcomers reach this node; without a host, where they reached it to join."""
        if self._config.public_address is not None:
            return str(self._config.public_address)
        host, port = self._state.address()
        return f":{port}" if host in _ANY_HOST else str(Endpoint(host, port))
