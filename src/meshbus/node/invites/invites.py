"""Invites and the listener for newcomers as one part of an open node: it listens exactly while an invite is open."""

from __future__ import annotations

import logging

import msgspec

from meshbus.errors import ConfigError
from meshbus.node.invites.inviting import InviteInfo, Inviting
from meshbus.node.invites.joinlistener import JoinListener
from meshbus.policy.invites import InviteSpec
from meshbus.wire.invitation import INVITE_ID_BYTES

_logger = logging.getLogger("meshbus.node")


class NewInvite(msgspec.Struct, frozen=True, kw_only=True):
    """An invite that was just made. Its repr shows no secret."""

    token: str
    """What the newcomer needs; kept nowhere else."""
    address: str
    """Where the newcomer joins; if the host is 0.0.0.0 or ::, under any address of this machine."""
    invite: InviteInfo

    def __repr__(self) -> str:
        return f"NewInvite({self.invite.invite}, {self.address})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("invite", self.invite.invite), ("address", self.address)]


class Invites:
    """The invites of one open node."""

    def __init__(self, inviting: Inviting, listener: JoinListener) -> None:
        self._inviting = inviting
        self._listener = listener

    async def start(self) -> None:
        """Listen if invites of an earlier run are open."""
        try:
            await self._listener.keep()
        except ConfigError as error:
            _logger.warning("open invites cannot be used: %s", error)

    async def close(self) -> None:
        """Stop listening, and end what is under way."""
        await self._listener.close()
        await self._inviting.close()

    @property
    def address(self) -> str | None:
        """Where newcomers join; None while no invite is open."""
        return self._listener.address

    def infos(self) -> list[InviteInfo]:
        """Return all invites that are kept, the oldest first."""
        return self._inviting.infos()

    async def invite(self, spec: InviteSpec, by: str) -> NewInvite:
        """Make an invite. Raises ConfigError."""
        await self._listener.open()  # before it exists: nobody could use an invite without it
        try:
            token = await self._inviting.invite(spec, by)
        finally:
            await self._listener.keep()
        address = self._listener.address
        assert address is not None, "an invite is open"
        made = next(one for one in self.infos() if one.invite == token.invite_id.hex())
        return NewInvite(token=token.text(), address=address, invite=made)

    async def approve(self, invite: str, by: str) -> InviteInfo:
        """Approve the newcomer that waits. Raises ConfigError."""
        return await self._inviting.approve(_id_of(invite), by)

    async def withdraw(self, invite: str, by: str) -> InviteInfo:
        """Withdraw an invite. Raises ConfigError."""
        withdrawn = await self._inviting.withdraw(_id_of(invite), by)
        await self._listener.keep()
        return withdrawn


def _id_of(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != INVITE_ID_BYTES:
        raise ConfigError(
            "invite",
            f"must be an id of {2 * INVITE_ID_BYTES} hex digits, as `meshbus invite ls` shows it, got {text!r}",
        )
    return raw
