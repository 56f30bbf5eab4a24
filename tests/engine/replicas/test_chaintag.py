"""The tag of a chain follows the role of the replica."""

from meshbus.engine.replicas.chaintag import follow_role
from meshbus.engine.replicas.records import RoleChanged
from meshbus.engine.replicas.roles import Signal, TagEffect
from meshbus.wire.messages.redex import Role, chain_of, channel_id

CHANNEL = channel_id("alarms/fire")
TAIL, NOW = 41, 2.5


class Tags:
    """Records what is announced and withdrawn."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def announce_chain(self, origin_hash: int, tip: int | None, now: float) -> None:
        self.calls.append(("announce", origin_hash, tip, now))

    def withdraw_chain(self, origin_hash: int, now: float) -> None:
        self.calls.append(("withdraw", origin_hash, now))


def test_a_role_announces_withdraws_or_leaves_the_chain_alone() -> None:
    tags, chain = Tags(), chain_of(CHANNEL)
    for effect in TagEffect:
        follow_role(RoleChanged(Role.LEADER, Signal.ELECTION_WON, effect, 3), CHANNEL, TAIL, tags, NOW)
    assert tags.calls == [("announce", chain, TAIL, NOW), ("withdraw", chain, NOW)]
