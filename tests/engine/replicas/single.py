"""One member on its own, whose disk and peers are played by the test."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.records import Ballot, Out
from meshbus.wire.messages.leadership import Config, Data, LeadershipMessage, Member, Promise, Propose, Stored
from tests.engine.replicas.memorydisk import MemoryDisk

ID = bytes(32)
TRIO = Config(epoch=1, version=1, members=(Member(1, 11), Member(2, 12), Member(3, 13)))
Kind = TypeVar("Kind")


class Single:
    """Member 1 of three by default, with a config, at epoch 1. Heartbeats come every second."""

    def __init__(
        self,
        *,
        own: int = 1,
        promised: int = 1,
        leader: int = 2,
        epochs: tuple[int, ...] = (),
        config: Config | None = TRIO,
        remembers: bool = True,
        damaged: bool = False,
        committed: int = 0,
        founds: bool = True,
        chosen: bool = False,
    ) -> None:
        self.settings = ReplicaSettings(
            nodes=(1, 2, 3),
            heartbeat_s=1.0,
            max_waiting_events=10,
            window_bytes=512 * 1024,
            founds=founds,
            chosen=chosen,
        )
        self.disk = MemoryDisk()
        content = self.disk.content
        if remembers:
            content.ballot = Ballot(incarnation=10 + own, promised=promised, leader=leader, config=config)
        content.events = [(epoch, b"%d.%d" % (epoch, seq)) for seq, epoch in enumerate(epochs)]
        self.now = 0.0
        self.out = Out()
        self.core = self._create(
            own, msgspec.structs.replace(content.recovered(), damaged=damaged, committed=committed)
        )
        self.play(self.core.open(self.now))

    def _create(self, own: int, found: Recovered) -> Leadership:
        return Leadership(ID, own, found, self.disk, self.settings, entropy=bytes)

    def play(self, out: Out) -> Out:
        """Carry out writes; messages and notices are kept in `out`."""
        self.out = out
        for write in out.writes:
            self.disk.write(write)
        return out

    def receive(self, sender: int, message: LeadershipMessage) -> Out:
        return self.play(self.core.receive(sender, message, self.now))

    def tick(self, now: float | None = None) -> Out:
        """Run for some time, by default until the next timer."""
        due = self.core.next_timer() if now is None else now
        assert due is not None
        self.now = due
        return self.play(self.core.tick(due))

    def sync(self) -> Out:
        """Make everything durable that was written."""
        return self.play(self.core.durable(self.core.seat.journal.number, self.now))

    def sent(self, kind: type[Kind]) -> list[Kind]:
        """The messages of one kind in the last output."""
        return [send.message for send in self.out.sends if isinstance(send.message, kind)]

    def noticed(self, kind: type[Kind]) -> list[Kind]:
        return [notice for notice in self.out.notices if isinstance(notice, kind)]

    def lead(self) -> None:
        """Campaign, and win with the promise of member 2; its log is empty."""
        self.tick()
        epoch = self.sent(Propose)[0].epoch
        self.receive(2, promise(epoch, trial=True))
        self.sync()
        self.receive(2, promise(epoch))
        assert self.core.lead is not None


def promise(
    epoch: int, *, node: int = 2, trial: bool = False, last_epoch: int = 0, tail: int = 0, config: Config | None = TRIO
) -> Promise:
    return Promise(
        channel_id=ID, epoch=epoch, trial=trial, incarnation=10 + node, last_epoch=last_epoch, tail=tail, config=config
    )


def propose(epoch: int, node: int = 2, *, trial: bool = False, founding: int = 0) -> Propose:
    return Propose(channel_id=ID, epoch=epoch, leader=node, incarnation=10 + node, trial=trial, founding=founding)


def stored(
    epoch: int,
    tail: int,
    *,
    node: int = 2,
    round_: int = 1,
    last_epoch: int | None = None,
    incarnation: int | None = None,
) -> Stored:
    return Stored(
        channel_id=ID,
        epoch=epoch,
        incarnation=10 + node if incarnation is None else incarnation,
        round=round_,
        last_epoch=epoch if last_epoch is None else last_epoch,
        tail=tail,
        config_epoch=epoch,
        config_version=1,
    )


def data(
    epoch: int, first: int, prev: int, *payloads: bytes, entry: int | None = None, round_: int = 1, committed: int = 0
) -> Data:
    return Data(
        channel_id=ID,
        epoch=epoch,
        round=round_,
        prev_epoch=prev,
        entry_epoch=epoch if entry is None else entry,
        committed=committed,
        first_retained=0,
        first_seq=first,
        payloads=payloads,
    )
