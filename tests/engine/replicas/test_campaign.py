from __future__ import annotations

from meshbus.engine.replicas.campaign import Campaign
from meshbus.wire.messages.leadership import Config, Member, Promise

TRIO = Config(epoch=1, version=1, members=(Member(1, 11), Member(2, 12), Member(3, 13)))


def promise(incarnation: int, last_epoch: int = 1, tail: int = 0, config: Config | None = None) -> Promise:
    return Promise(
        channel_id=bytes(32), epoch=5, incarnation=incarnation, last_epoch=last_epoch, tail=tail, config=config
    )


def campaign(**promises: Promise) -> Campaign:
    one = Campaign(5, trial=False, until=9.0)
    for node, given in promises.items():
        one.promise(int(node[1:]), given)
    return one


def test_a_majority_of_the_members_wins() -> None:
    assert not campaign(n1=promise(11)).won(TRIO)
    assert campaign(n1=promise(11), n3=promise(13)).won(TRIO)


def test_a_member_that_lost_its_memory_does_not_count() -> None:
    one = campaign(n1=promise(11), n3=promise(99))
    assert not one.won(TRIO)
    assert one.missing([1, 2, 3]) == [2]


def test_the_best_log_is_the_one_of_the_latest_epoch_and_then_the_longest() -> None:
    one = campaign(n1=promise(11, 3, 10), n2=promise(12, 4, 2), n3=promise(13, 4, 5))
    assert one.best(TRIO, own=1) == (3, (4, 5))
    assert campaign(n1=promise(11, 4, 5), n3=promise(13, 4, 5)).best(TRIO, own=1) == (1, (4, 5))
    assert campaign(n1=promise(11), n9=promise(19, 8, 8)).best(TRIO, own=1) == (1, (1, 0)), "not a member"


def test_a_set_is_founded_when_all_answer_and_none_has_a_config() -> None:
    one = campaign(n2=promise(12), n1=promise(11))
    assert one.founded((1, 2, 3)) is None
    one.promise(3, promise(13))
    assert one.founded((1, 2, 3)) == TRIO
    one.promise(3, promise(13, config=TRIO))
    assert one.founded((1, 2, 3)) is None, "a set is founded once"
