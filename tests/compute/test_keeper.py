"""Chains on several nodes: events, proofs, forks, and who may speak."""

from __future__ import annotations

import pytest

from meshbus.compute import heldchain
from meshbus.compute import keeper as module
from meshbus.compute.causal import ChainFault, ChainHead, EntityLog
from meshbus.compute.keeper import ChainKeeper
from meshbus.compute.reconciling import Broken, CaughtUp, Diverged
from meshbus.engine.base.counters import Counters
from meshbus.errors import DaemonError, LocalProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import CausalEvent, CausalLink, encode_causal
from meshbus.wire.messages.continuity import (
    ContinuityProof,
    ForkRecord,
    Judged,
    Prove,
    Verdict,
    decode_continuity,
    encode_continuity,
    encode_fork,
    encode_proof,
)
from meshbus.wire.messages.reconciliation import MAX_CHAINED_PAYLOAD, Want, encode_reconciliation
from tests.compute.keepers import ORIGIN, KeeperNet, fork

IDS = (
    Subprotocol.CAUSAL,
    Subprotocol.CONTINUITY,
    Subprotocol.FORK,
    Subprotocol.PROOF,
    Subprotocol.RECONCILE,
)


def pair(**settings: float) -> KeeperNet:
    net = KeeperNet(1, 2, **settings)  # type: ignore[arg-type]
    net.connect((1, 2))
    net.nodes[1].hold(2)
    net.nodes[2].hold(1)
    net.run()
    return net


def test_events_of_a_chain_reach_its_members() -> None:
    net = pair()
    net.nodes[1].write(b"a", b"b")
    net.nodes[1].write(b"c")
    net.run()
    assert net.nodes[2].payloads == [b"a", b"b", b"c"]
    assert net.nodes[2].chain.log.head_hash == net.nodes[1].chain.log.head_hash


def test_a_member_that_comes_later_fetches_what_it_lacks() -> None:
    net = KeeperNet(1, 2)
    net.nodes[1].hold(2)
    net.nodes[1].write(*(b"%d" % number for number in range(3000)))
    net.nodes[2].hold(1)
    net.connect((1, 2))
    net.run()
    assert net.nodes[2].payloads == net.nodes[1].payloads
    (caught,) = net.nodes[2].reported(CaughtUp)
    assert isinstance(caught, CaughtUp)
    assert len(caught.events) == 3000


def test_a_copy_that_begins_later_is_enough() -> None:
    net = KeeperNet(1, 2)
    head = ChainHead(CausalLink(ORIGIN, sequence=40), 99)
    log = EntityLog(ORIGIN, anchor=CausalEvent(head.link, b""), anchor_hash=99)
    log.extend([head.emit(b"a", 0), head.emit(b"b", 0)])
    net.post(1, net.nodes[1].keeper.hold(log, [2]))
    net.nodes[2].hold(1)
    net.connect((1, 2))
    net.run()
    assert net.nodes[2].payloads == [b"a", b"b"]
    assert net.nodes[2].chain.log.head.link.sequence == 42


def test_a_changed_event_is_refused_and_the_true_one_fetched() -> None:
    net = pair()
    net.nodes[1].write(b"a")
    net.run()
    head = ChainHead(net.nodes[2].chain.log.head.link, 12345)
    forged = head.emit(b"forged", 0)
    net.nodes[2].keeper.handle(Subprotocol.CAUSAL, encode_causal([forged]), 1, net.now)
    assert net.nodes[2].payloads == [b"a"]
    assert net.nodes[2].counters.get("drop", "chain_broken") == 1
    assert net.nodes[2].reported(Broken) == [Broken(origin=ORIGIN, peer=1, fault=ChainFault.PARENT_HASH_MISMATCH)]


def test_a_lost_event_is_fetched_with_the_next() -> None:
    net = pair()
    net.nodes[1].write(b"a")
    net.run()
    net.drops = 1.0
    net.nodes[1].write(b"b")
    net.step()
    net.drops = 0.0
    net.nodes[1].write(b"c")
    net.run()
    assert net.nodes[2].payloads == [b"a", b"b", b"c"]
    assert net.nodes[2].counters.get("drop", "chain_gap") == 1


def test_events_that_are_known_change_nothing() -> None:
    net = pair()
    net.nodes[1].write(b"a")
    net.run()
    event = net.nodes[1].chain.log.events[0]
    assert net.nodes[2].keeper.handle(Subprotocol.CAUSAL, encode_causal([event]), 1, 0.0) == []
    assert net.nodes[2].counters.get("drop", "chain_duplicate") == 1


def test_proofs_verify_on_other_nodes() -> None:
    net = pair()
    net.nodes[1].write(b"a", b"b", b"c")
    net.run()
    net.post(1, net.nodes[1].keeper.prove(ORIGIN))
    net.run()
    assert net.nodes[1].keeper.take_verdicts() == [(2, Judged(ORIGIN, 1, 3, Verdict.HOLDS))]


def test_a_proof_of_another_history_fails_and_the_histories_are_reconciled() -> None:
    net = pair()
    net.nodes[1].write(b"a")
    net.run()
    # Changed behind everyone's back.
    event = net.nodes[2].chain.log.events[0]
    net.nodes[2].chain.log.events[0] = CausalEvent(event.link, b"tampered")
    net.post(1, net.nodes[1].keeper.prove(ORIGIN))
    net.run()
    assert net.nodes[1].keeper.take_verdicts() == [(2, Judged(ORIGIN, 1, 1, Verdict.HASH_MISMATCH))]
    assert net.nodes[1].payloads == net.nodes[2].payloads
    assert len(net.nodes[1].reported(Diverged)) == len(net.nodes[2].reported(Diverged)) == 1


def test_a_proof_can_be_asked_for() -> None:
    net = pair()
    net.nodes[1].write(b"a", b"b")
    net.run()
    keeper = net.nodes[1].keeper
    (answer,) = keeper.handle(Subprotocol.CONTINUITY, encode_continuity(Prove(ORIGIN, 2, 9)), 2, 0.0)
    assert answer[:2] == (2, Subprotocol.PROOF)
    (verdict,) = net.nodes[2].keeper.handle(*answer[1:], 1, 0.0)
    assert decode_continuity(verdict[2]) == Judged(ORIGIN, 2, 2, Verdict.HOLDS)
    (nothing,) = keeper.handle(Subprotocol.CONTINUITY, encode_continuity(Prove(ORIGIN, 7, 9)), 2, 0.0)
    assert decode_continuity(nothing[2]) == Judged(ORIGIN, 7, 9, Verdict.MISSING_EVENT)


def test_proofs_are_limited() -> None:
    net = pair()
    net.nodes[1].write(b"a")
    net.run()
    proof = net.nodes[1].keeper.prove(ORIGIN)[0][2]
    verdicts = [net.nodes[2].keeper.handle(Subprotocol.PROOF, proof, 1, 10.0)[0][2] for _ in range(9)]
    found = [decode_continuity(verdict) for verdict in verdicts]
    assert [isinstance(one, Judged) and one.verdict == Verdict.BUSY for one in found] == [False] * 4 + [True] * 5
    question = encode_continuity(Prove(ORIGIN, 1, 1))
    (busy,) = net.nodes[2].keeper.handle(Subprotocol.CONTINUITY, question, 1, 10.0)
    assert decode_continuity(busy[2]) == Judged(ORIGIN, 1, 1, Verdict.BUSY)
    assert net.nodes[2].counters.get("refuse", "proof_rate") == 6


def test_a_verdict_that_nobody_asked_for_is_dropped() -> None:
    net = pair()
    verdict = encode_continuity(Judged(ORIGIN, 1, 1, Verdict.HOLDS))
    assert net.nodes[1].keeper.handle(Subprotocol.CONTINUITY, verdict, 2, 0.0) == []
    assert net.nodes[1].keeper.take_verdicts() == []
    assert net.nodes[1].counters.get("drop", "chain_unexpected") == 1


def test_forks_are_announced_and_remembered() -> None:
    net = pair()
    record = ForkRecord(original_origin=ORIGIN, forked_origin=7, fork_seq=3)
    net.post(1, net.nodes[1].keeper.announce_fork(record))
    net.run()
    for node in net.nodes.values():
        assert node.chain.forks.get(7) == record
    strange = ForkRecord(original_origin=1, forked_origin=7, fork_seq=3)
    assert net.nodes[1].keeper.announce_fork(strange) == []


def messages(origin: int) -> list[tuple[int, bytes]]:
    event = fork(origin).emit(b"x", 0)
    return [
        (Subprotocol.CAUSAL, encode_causal([event])),
        (Subprotocol.CONTINUITY, encode_continuity(Prove(origin, 1, 2))),
        (Subprotocol.CONTINUITY, encode_continuity(Judged(origin, 1, 2, Verdict.HOLDS))),
        (Subprotocol.FORK, encode_fork(ForkRecord(original_origin=origin, forked_origin=7, fork_seq=3))),
        (Subprotocol.PROOF, encode_proof(ContinuityProof(origin, 1, 1, 2, 3))),
        (Subprotocol.RECONCILE, encode_reconciliation(Want(origin=origin, branch=1))),
    ]


def test_nobody_but_members_has_a_say() -> None:
    net = pair()
    node = net.nodes[1]
    net.post(1, node.keeper.peer_up(9))
    for subprotocol_id, message in messages(ORIGIN):
        assert node.keeper.handle(subprotocol_id, message, 9, 0.0) == []
    assert node.counters.get("refuse", "chain_sender") == len(messages(ORIGIN))
    for subprotocol_id, message in messages(5):
        assert node.keeper.handle(subprotocol_id, message, 2, 0.0) == []
    assert node.counters.get("drop", "chain_unknown") == len(messages(5))
    assert node.payloads == []
    assert len(node.chain.forks) == 0


@pytest.mark.parametrize("subprotocol_id", IDS)
def test_what_cannot_be_read_is_counted(subprotocol_id: int) -> None:
    net = pair()
    for message in (b"", b"\xff" * 20, bytes(70)):
        assert net.nodes[1].keeper.handle(subprotocol_id, message, 2, 0.0) == []
    assert net.nodes[1].counters.get("drop", "chain_malformed") == 3


def test_only_events_that_follow_are_added_here() -> None:
    net = pair()
    keeper = net.nodes[1].keeper
    with pytest.raises(DaemonError, match="does not hold"):
        keeper.append(1, [])
    with pytest.raises(DaemonError, match="does not hold"):
        keeper.prove(1)
    head = fork()
    first, second = head.emit(b"a", 0), head.emit(b"b", 0)
    with pytest.raises(LocalProtocolError, match="does not continue"):
        keeper.append(ORIGIN, [first, first])
    assert net.nodes[1].payloads == []
    with pytest.raises(LocalProtocolError, match="at most"):
        keeper.append(ORIGIN, [CausalEvent(first.link, bytes(MAX_CHAINED_PAYLOAD + 1))])
    keeper.append(ORIGIN, [first, second])
    net.nodes[1].chain.rivals.add(2)
    assert keeper.contested(ORIGIN)
    with pytest.raises(DaemonError, match="another node has written"):
        keeper.append(ORIGIN, [head.emit(b"c", 0)])


def test_a_copy_that_emits_the_same_again_continues_and_another_leaves_a_branch() -> None:
    net = pair()
    net.nodes[1].write(b"a", b"b", b"c")
    net.run()
    head = fork()
    same = [head.emit(payload, 0) for payload in (b"a", b"b")]
    keeper = net.nodes[2].keeper
    # It has seen less than the first: the rest of its history is a branch that lost, and this node reports it.
    net.post(2, keeper.take_over(ORIGIN, 1, same[1:]))
    assert net.nodes[2].payloads == [b"a", b"b"]
    (report,) = net.nodes[2].reported(Diverged)
    assert isinstance(report, Diverged)
    assert [event.payload for event in report.lost.events] == [b"c"]
    more = [head.emit(payload, 0) for payload in (b"d", b"e")]
    net.post(2, keeper.take_over(ORIGIN, 2, more))
    assert len(net.nodes[2].reported(Diverged)) == 1
    net.run()
    assert net.nodes[1].payloads == net.nodes[2].payloads == [b"a", b"b", b"d", b"e"]
    assert keeper.heads() == ((ORIGIN, 4),)
    assert [out[0] for out in keeper.compare()] == [1]


def test_what_is_emitted_again_is_no_branch_and_something_else_is() -> None:
    net = pair()
    head = fork()
    events = [head.emit(payload, 0) for payload in (b"a", b"b", b"c")]
    keeper = net.nodes[1].keeper
    assert keeper.emit(7, events) == []
    net.post(1, keeper.emit(ORIGIN, events[:2]))
    net.run()
    # A daemon that was restarted, or moved to the other node, has its last outputs in its checkpoint.
    net.post(1, keeper.emit(ORIGIN, events[:2]))
    net.post(2, net.nodes[2].keeper.emit(ORIGIN, events[1:]))
    net.run()
    assert net.nodes[1].payloads == net.nodes[2].payloads == [b"a", b"b", b"c"]
    assert [len(node.chain.branches) for node in net.nodes.values()] == [0, 0]
    other = fork()
    net.post(2, net.nodes[2].keeper.emit(ORIGIN, [other.emit(b"x", 0)]))
    net.run()
    assert net.nodes[1].payloads == net.nodes[2].payloads == [b"a", b"b", b"c"]
    assert [len(node.chain.branches) for node in net.nodes.values()] == [1, 1]


def test_what_is_emitted_waits_for_the_events_before_it() -> None:
    net = KeeperNet(1, 2, 3)
    head = fork()
    events = [head.emit(b"%d" % number, 0) for number in range(12)]
    for node in net.nodes.values():
        node.hold(*{1, 2, 3} - {node.node})
    net.connect((1, 3))
    net.post(1, net.nodes[1].keeper.emit(ORIGIN, events[:4]))
    net.run()
    # The daemon moved to 2, whose copy is empty, then to 3, and back to 2; 2 hears of nothing until it is connected.
    late = net.nodes[2]
    net.post(2, late.keeper.emit(ORIGIN, events[4:6]))
    net.post(3, net.nodes[3].keeper.emit(ORIGIN, events[6:9]))
    net.post(2, late.keeper.emit(ORIGIN, events[9:]))
    net.run()
    assert (late.payloads, len(late.chain.waiting), len(net.nodes[3].chain.waiting)) == ([], 5, 3)
    net.connect((2, 3))
    net.run()
    net.connect((1, 2))
    net.run()
    for node in net.nodes.values():
        assert node.payloads == [b"%d" % number for number in range(12)]
        assert (node.chain.waiting, len(node.chain.branches)) == ([], 0)
        assert node.keeper.next_timer() is None


def test_a_copy_begins_with_what_is_emitted_if_nobody_has_what_was_before() -> None:
    head = fork()
    events = [head.emit(b"%d" % number, 0) for number in range(6)]
    alone = KeeperNet(1)
    alone.nodes[1].hold()
    alone.nodes[1].keeper.emit(ORIGIN, events[2:4])
    assert alone.nodes[1].payloads == [b"2", b"3"]
    net = pair()
    net.post(1, net.nodes[1].keeper.emit(ORIGIN, events[2:4]))
    assert net.nodes[1].payloads == []  # the other is asked first
    net.run()
    assert net.nodes[1].payloads == net.nodes[2].payloads == [b"2", b"3"]
    # It goes on while a member does not answer at all.
    silent = pair(drops=1.0)
    silent.post(1, silent.nodes[1].keeper.emit(ORIGIN, events[2:4]))
    silent.run()
    assert silent.nodes[1].payloads == [b"2", b"3"]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldchain, "MAX_WAITING", 4)
    net = pair()
    head = fork()
    events = [head.emit(b"%d" % number, 0) for number in range(20)]
    one = net.nodes[1]
    net.post(1, one.keeper.emit(ORIGIN, events[:2]))
    net.run()
    # Events 2 to 4 are lost for good: nobody has them.
    for event in events[5:8]:
        net.post(1, one.keeper.emit(ORIGIN, [event]))
        net.run()
    assert (one.payloads, len(one.chain.waiting)) == ([b"0", b"1"], 3)
    net.post(1, one.keeper.emit(ORIGIN, events[8:9]))
    net.run()
    assert (one.payloads, one.chain.waiting) == ([b"5", b"6", b"7", b"8"], [])
    assert one.counters.get("forget", "chain_events") == 2
    assert one.chain.size == 4
    one.chain.rivals.add(2)
    one.keeper.emit(ORIGIN, events[9:18])
    assert [event.payload for event in one.chain.waiting] == [b"14", b"15", b"16", b"17"]
    assert one.counters.get("forget", "chain_waiting") == 5
    one.keeper.release(ORIGIN)
    assert one.keeper.next_timer() is None


def test_what_waits_goes_on_when_a_rival_is_gone() -> None:
    net = pair()
    one, head = net.nodes[1], fork()
    one.chain.rivals.add(2)
    one.keeper.emit(ORIGIN, [head.emit(b"a", 0)])
    net.run()
    assert one.payloads == []
    net.cut((1, 2))
    net.run()
    assert one.payloads == [b"a"]


def test_a_chain_can_be_released() -> None:
    net = pair()
    net.nodes[1].keeper.release(ORIGIN)
    net.nodes[1].keeper.release(ORIGIN)
    assert ORIGIN not in net.nodes[1].keeper
    assert not net.nodes[1].keeper.contested(ORIGIN)


def test_held_chains_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 2)
    keeper = ChainKeeper(1, Counters())
    keeper.hold(EntityLog(1), [])
    keeper.hold(EntityLog(2), [])
    keeper.hold(EntityLog(2), [5])
    with pytest.raises(DaemonError, match="holds 2 chains"):
        keeper.hold(EntityLog(3), [])


def test_peers_whose_proofs_are_counted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ASKERS", 3)
    counters = Counters()
    keeper = ChainKeeper(1, counters)
    keeper.hold(EntityLog(ORIGIN), range(9))
    for node in range(9):
        keeper.handle(Subprotocol.CONTINUITY, encode_continuity(Prove(ORIGIN, 1, 1)), node, 0.0)
    assert len(keeper._rates) == 3
    assert counters.get("forget", "proof_askers") == 6
    assert counters.get(*Reason.REFUSE_PROOF_RATE.counter) == 0
