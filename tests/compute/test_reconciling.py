"""Copies of one chain after partitions: one history everywhere, the same for every order of messages, and nothing lost."""

from __future__ import annotations

import itertools

import pytest

from meshbus.compute import heldchain, reconciling
from meshbus.compute.reconciling import Broken, CaughtUp, Diverged, Incomparable, Reconciler
from meshbus.engine.base.counters import Counters
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.reconciliation import (
    Branch,
    Diff,
    Events,
    Point,
    ReconciliationMessage,
    Want,
    encode_reconciliation,
)
from tests.compute.keepers import ORIGIN, KeeperNet, Keeping
from tests.seeds import for_each_seed


def parted(*nodes: int, seed: int = 0, shared: tuple[bytes, ...] = (b"shared",)) -> KeeperNet:
    """Return nodes that shared a history and do not reach each other any more."""
    net, pairs = KeeperNet(*nodes, seed=seed), list(itertools.combinations(nodes, 2))
    for node in nodes:
        net.nodes[node].hold(*(other for other in nodes if other != node))
    net.connect(*pairs)
    net.nodes[nodes[0]].write(*shared)
    net.run()
    net.cut(*pairs)
    return net


def heal(net: KeeperNet) -> None:
    net.connect(*itertools.combinations(net.nodes, 2))
    net.run()


def kept(node: Keeping) -> set[tuple[int, tuple[bytes, ...]]]:
    branches = (node.chain.branches.get(one) for one in node.chain.branches)
    return {
        (branch.record.forked_origin, tuple(event.payload for event in branch.events))
        for branch in branches
        if branch is not None
    }


@for_each_seed(range(40))
def test_two_partitions_that_wrote_the_same_chain_agree_whatever_the_order_of_messages(seed: int) -> None:
    net = parted(1, 2, seed=seed)
    net.nodes[1].write(b"left 1", b"left 2")
    net.nodes[2].write(b"right 1", b"right 2", b"right 3")
    heal(net)
    for node in net.nodes.values():
        assert node.payloads == [b"shared", b"right 1", b"right 2", b"right 3"]
        ((_, lost),) = kept(node)
        assert lost == (b"left 1", b"left 2")
        (report,) = node.reported(Diverged)
        assert isinstance(report, Diverged)
        assert (report.sequence, report.lost.record.fork_seq) == (2, 2)
        assert report.ours in ({True} if node.node == 1 else {False, None})
        assert not node.chain.rivals
    assert kept(net.nodes[1]) == kept(net.nodes[2])


def test_branches_of_equal_length_are_decided_alike() -> None:
    outcomes = set()
    for seed in range(20):
        net = parted(1, 2, seed=seed)
        net.nodes[1].write(b"left")
        net.nodes[2].write(b"right")
        heal(net)
        assert net.nodes[1].payloads == net.nodes[2].payloads
        outcomes.add(tuple(net.nodes[1].payloads))
    assert len(outcomes) == 1


def heal_after_partitions(seed: int) -> None:
    """Let nodes write, part and meet at random; in the end all have one history, and nothing is lost."""
    net = parted(*range(1, 2 + seed % 4 + 1), seed=seed, shared=())
    rng, written, places = net.rng, set[bytes](), list(net.nodes)
    net.drops = rng.choice((0.0, 0.0, 0.2))
    for number in range(rng.randrange(1, 30)):
        node = net.nodes[rng.choice(places)]
        match rng.randrange(6):
            case 0:
                net.connect(rng.choice(list(itertools.combinations(places, 2))))
            case 1:
                net.cut(rng.choice(list(itertools.combinations(places, 2))))
            case 2:
                for _ in range(rng.randrange(20)):
                    net.step()
            case _ if not node.keeper.contested(ORIGIN):
                payload = b"%d %d" % (number, node.node)
                written.add(payload)
                node.write(payload, horizon=rng.choice((0, 1, 3)))
    net.drops = 0.0
    net.cut(*itertools.combinations(places, 2))
    heal(net)
    # Nothing that was written is lost, and everyone has the same chain.
    histories = {tuple(node.payloads) for node in net.nodes.values()}
    hashes = {node.chain.log.head_hash for node in net.nodes.values()}
    assert len(histories) == len(hashes) == 1
    for node in net.nodes.values():
        saved = {payload for _, branch in kept(node) for payload in branch}
        assert written <= saved | set(node.payloads)
        assert not node.chain.rivals
        assert node.counters.get("drop", "chain_unverifiable") == 0


@for_each_seed(range(60))
def test_any_number_of_partitions_leaves_one_history_and_loses_nothing(seed: int) -> None:
    heal_after_partitions(seed)


def test_the_same_event_with_another_horizon_is_the_same_on_both_sides_afterwards() -> None:
    for left, right in ((1, 2), (2, 1)):
        net = parted(1, 2)
        net.nodes[1].write(b"x", horizon=left)
        net.nodes[2].write(b"x", horizon=right)
        heal(net)
        assert [node.chain.log.head.link.horizon for node in net.nodes.values()] == [1, 1]
        assert not net.nodes[1].reported(Diverged)


def test_a_copy_that_is_only_behind_loses_nothing_and_reports_what_it_got() -> None:
    net = parted(1, 2)
    net.nodes[2].write(b"a", b"b")
    heal(net)
    assert net.nodes[1].payloads == [b"shared", b"a", b"b"]
    (caught,) = net.nodes[1].reported(CaughtUp)
    assert isinstance(caught, CaughtUp)
    assert [event.payload for event in caught.events] == [b"a", b"b"]
    assert not net.nodes[1].reported(Diverged)


def test_a_node_stands_still_while_its_history_is_contested_and_goes_on_when_the_other_is_gone() -> None:
    net = parted(1, 2)
    net.nodes[1].write(b"left")
    net.nodes[2].write(b"right")
    net.connect((1, 2))
    while not any(node.chain.rivals for node in net.nodes.values()):
        assert net.step()
    net.cut((1, 2))
    assert not any(node.chain.rivals for node in net.nodes.values())


def test_a_question_that_is_not_answered_is_asked_again_and_not_for_ever() -> None:
    net = parted(1, 2)
    net.nodes[1].write(b"left")
    net.nodes[2].write(b"right")
    net.connect((1, 2))
    while not net.nodes[1].chain.rivals:
        assert net.step()
    net.drops = 1.0
    net.run()
    assert not net.nodes[1].chain.rivals
    net.drops = 0.0
    net.cut((1, 2))
    heal(net)
    assert net.nodes[1].payloads == net.nodes[2].payloads


def say(net: KeeperNet, message: ReconciliationMessage, sender: int = 2) -> list[tuple[int, int, bytes]]:
    return net.nodes[1].keeper.handle(Subprotocol.RECONCILE, encode_reconciliation(message), sender, net.now)


def test_events_that_nobody_asked_for_are_dropped() -> None:
    net = parted(1, 2)
    net.connect((1, 2))
    net.run()
    event = net.nodes[1].chain.log.events[0]
    assert say(net, Events(origin=ORIGIN, split=0, last=True, events=(event,))) == []
    assert say(net, Want(origin=ORIGIN, branch=5)) == []
    assert net.nodes[1].counters.get("drop", "chain_unexpected") == 2


@pytest.mark.parametrize("change", ["payload", "parent", "sequence"])
def test_a_false_answer_changes_nothing(change: str) -> None:
    net = parted(1, 2)
    net.connect((1, 2))
    net.run()
    net.nodes[2].write(b"a", b"b")
    events = net.nodes[2].chain.log.after(1)
    link = events[0].link
    match change:
        case "payload":
            events[0] = CausalEvent(link, b"x")
        case "parent":
            events[0] = CausalEvent(type(link)(link.origin_hash, 0, link.sequence, 5), b"a")
        case _:
            events.pop(0)
    node = net.nodes[1]
    node.keeper._reconciler.ask(node.chain, 2, net.now)
    say(net, Events(origin=ORIGIN, split=1, last=True, events=tuple(events)))
    assert node.payloads == [b"shared"]
    told = ("drop", "chain_unexpected" if change == "sequence" else "chain_broken")
    assert node.counters.get(*told) == 1
    assert bool(node.reported(Broken)) == (change != "sequence")


def test_a_false_branch_is_not_kept() -> None:
    net = parted(1, 2)
    net.nodes[1].write(b"left")
    net.nodes[2].write(b"right", b"right")
    net.connect((1, 2))
    net.run()
    (origin,) = net.nodes[1].chain.branches
    branch = net.nodes[1].chain.branches.pop(origin)
    assert branch is not None
    name = Branch(record=branch.record, count=1, head_hash=0)
    for events in ((CausalEvent(branch.events[0].link, b"forged"),), ()):
        assert [out[0] for out in say(net, name)] == [2]
        say(net, Events(origin=ORIGIN, branch=origin, split=1, last=True, events=events))
    assert net.nodes[1].counters.get("drop", "chain_broken") == 2
    assert len(net.nodes[1].chain.branches) == 0
    say(net, Branch(record=branch.record, count=1 << 30, head_hash=0))
    assert net.nodes[1].counters.get("refuse", "chain_full") == 1


def test_copies_without_a_common_event_cannot_be_compared() -> None:
    net = parted(1, 2)
    net.connect((1, 2))
    net.run()
    assert say(net, Diff(origin=ORIGIN, points=(Point(9, 9),))) == []
    assert net.nodes[1].reported(Incomparable) == [Incomparable(origin=ORIGIN, peer=2)]
    assert net.nodes[1].counters.get("drop", "chain_unverifiable") == 1


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "MAX_ANSWER_BYTES", 400)
    net = parted(1, 2)
    net.nodes[2].write(*(b"%d" % number for number in range(9)))
    heal(net)
    assert net.nodes[1].counters.get("refuse", "chain_full") == 1
    assert net.nodes[1].payloads == [b"shared"]
    assert len(net.nodes[1].keeper._reconciler) == 0


def test_all_answers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "MAX_ANSWERS_BYTES", 400)
    net = parted(1, 2)
    net.nodes[2].write(*(b"%d" % number for number in range(9)))
    heal(net)
    reconciler = net.nodes[1].keeper._reconciler
    assert net.nodes[1].counters.get("refuse", "chain_full") == 1
    assert (len(reconciler), reconciler._held_bytes) == (0, 0)
    monkeypatch.undo()
    net.cut((1, 2))
    heal(net)
    assert net.nodes[1].payloads == net.nodes[2].payloads
    assert reconciler._held_bytes == 0


def test_branches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldchain, "MAX_BRANCHES", 2)
    net = parted(1, 2)
    for number in range(5):
        net.nodes[1].write(b"left %d" % number)
        net.nodes[2].write(b"right %d" % number, b"more")
        heal(net)
        net.cut((1, 2))
    assert len(net.nodes[1].chain.branches) == 2
    assert net.nodes[1].counters.get("forget", "branches") == 3


def test_nothing_is_left_of_a_chain_that_was_forgotten() -> None:
    net = parted(1, 2)
    net.nodes[2].write(b"a")
    net.connect((1, 2))
    reconciler = Reconciler(1, Counters())
    reconciler.ask(net.nodes[1].chain, 2, 0.0)
    assert reconciler.next_timer() == reconciling.RETRY_S
    assert reconciler.is_asking(ORIGIN)
    reconciler.forget(ORIGIN)
    assert len(reconciler) == 0
    assert not reconciler.is_asking(ORIGIN)
