"""The chains that one node holds, live: events of daemons out and in, proofs, forks, and reconciliation.

    emit (a daemon here emitted) ──► 0x0400 to every member of the chain; fetched first (0x0801): what it emitted elsewhere
    0x0400 ──► the next event: taken · a gap: fetched (0x0801) · another history: reconciled (0x0801)
    0x0700 ──► a question for a proof, answered on 0x0702; a verdict about ours
    0x0702 ──► a proof, compared with our copy; the verdict goes back on 0x0700
    0x0701 ──► a fork, remembered

A message counts only if its sender is a member of the chain. Messages and time in, messages out; what happened is in
`reports`, for whoever drives this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from meshbus.compute.causal import ChainFault, EntityLog
from meshbus.compute.continuity import check_proof, prove
from meshbus.compute.heldchain import HeldChain
from meshbus.compute.reconciling import Broken, Outbound, Reconciler, Report
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.errors import DaemonError, DaemonFault, LocalProtocolError, MalformedPacket
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import CausalEvent, decode_causal_event, encode_causal
from meshbus.wire.messages.continuity import (
    ContinuityProof,
    ForkRecord,
    Judged,
    Prove,
    Verdict,
    decode_continuity,
    decode_fork,
    decode_proof,
    encode_continuity,
    encode_fork,
    encode_proof,
)
from meshbus.wire.messages.reconciliation import MAX_CHAINED_PAYLOAD, Branch, Point, decode_reconciliation

MAX_HELD = 1024
"""Chains that one node holds. Our choice."""
MAX_ASKERS = 1024
"""Peers whose proofs are counted. Our choice: as many as chains."""
PROOFS_PER_S = 4.0
"""Proofs of one peer that are checked or written; each may hash a whole chain (state.md §5: limit them)."""

BOUNDS = (
    Bound(
        name="held_chains",
        what="chains that this node holds",
        by=By.USER,
        per_node=MAX_HELD,
        full="the new one is refused",
        counter="raises DaemonError",
    ),
    Bound(
        name="proof_askers",
        what="peers whose proofs are counted",
        by=By.PEER,
        per_node=MAX_ASKERS,
        full="the one that was first heard goes",
        counter=forgotten("proof_askers"),
    ),
)


class ChainKeeper:
    """All chains of one node."""

    def __init__(self, own: int, counters: Counters) -> None:
        self._counters = counters
        self._chains: dict[int, HeldChain] = {}
        self._lagging: set[int] = set()
        """Chains that cannot take yet what their daemon emitted here."""
        self._up: set[int] = set()
        self._reconciler = Reconciler(own, counters)
        self._rates: BoundedMap[int, TokenBucket] = BoundedMap(MAX_ASKERS, counters.forgetting("proof_askers"))
        self._proving: set[tuple[int, int]] = set()
        """Chains, and members that were sent a proof and have not answered."""
        self._verdicts: list[tuple[int, Judged]] = []

    def __contains__(self, origin: object) -> bool:
        return origin in self._chains

    def chain(self, origin: int) -> HeldChain | None:
        """Return a chain, or None if this node does not hold it."""
        return self._chains.get(origin)

    def heads(self) -> tuple[tuple[int, int], ...]:
        """Return the number of the last event of each chain."""
        return tuple((origin, chain.log.head.link.sequence) for origin, chain in sorted(self._chains.items()))

    def take_reports(self) -> list[Report]:
        """Return what happened since the last call."""
        reports, self._reconciler.reports = self._reconciler.reports, []
        return reports

    def take_verdicts(self) -> list[tuple[int, Judged]]:
        """Return what members found about proofs of this node since the last call, with their node ids."""
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    # ── what this node does ─────────────────────────────────────────────────────────────────

    def hold(self, log: EntityLog, members: Iterable[int]) -> list[Outbound]:
        """Hold a chain together with other nodes, or change who they are; the copies are compared at once.

        Raises DaemonError if this node holds too many chains.
        """
        chain = self._chains.get(log.origin_hash)
        if chain is None:
            if len(self._chains) >= MAX_HELD:
                problem = f"this node holds {MAX_HELD} chains, the most that it may; release some of them"
                raise DaemonError(DaemonFault.DUPLICATE, log.origin_hash, problem)
            chain = self._chains[log.origin_hash] = HeldChain(log, frozenset(), self._counters)
        chain.members = frozenset(members)
        return [out for node in self._reachable(chain) for out in self._reconciler.greet(chain, node)]

    def release(self, origin: int) -> None:
        """Hold a chain no longer; nothing happens if it is not held."""
        self._chains.pop(origin, None)
        self._lagging.discard(origin)
        self._reconciler.forget(origin)

    def contested(self, origin: int) -> bool:
        """Return whether nothing may be added to a chain now, because two histories of it are being settled."""
        chain = self._chains.get(origin)
        return chain is not None and bool(chain.rivals)

    def append(self, origin: int, events: Sequence[CausalEvent]) -> list[Outbound]:
        """Add events that a daemon of this node emitted, and return the messages for the other members.

        Raises DaemonError if the chain is not held or is contested, LocalProtocolError if an event does not follow it or
        is too long; then nothing is added.
        """
        chain = self._chains.get(origin)
        if chain is None:
            raise DaemonError(DaemonFault.UNKNOWN, origin, "this node does not hold its chain")
        if chain.rivals:
            raise DaemonError(
                DaemonFault.PAUSED, origin, "another node has written its chain; wait until that is settled"
            )
        before = chain.log.head.link.sequence
        if any(len(event.payload) > MAX_CHAINED_PAYLOAD for event in events):
            raise LocalProtocolError(f"an output of a chain has at most {MAX_CHAINED_PAYLOAD} bytes")
        for event in events:
            if (fault := chain.append(event)) is not None:
                chain.replace_after(before, ())
                raise LocalProtocolError(f"event {event.link.sequence} does not continue {origin:016x}: {fault}")
        messages = [encode_causal([event]) for event in events]
        return [(node, Subprotocol.CAUSAL, message) for node in self._reachable(chain) for message in messages]

    def emit(self, origin: int, events: Sequence[CausalEvent]) -> list[Outbound]:
        """Add what a daemon of this node emitted, which may be the same again, and return the messages for the members.

        A daemon that moved here, or was restarted, may be ahead of this node's copy: what it emits waits until the events
        before it are here, which other members are asked for. Events that do not continue the chain are kept as a branch
        that lost. Nothing happens if the chain is not held.
        """
        chain = self._chains.get(origin)
        if chain is None:
            return []
        chain.wait(events)
        self._lagging.add(origin)
        return self._go_on(chain)

    def take_over(self, origin: int, after: int, events: Sequence[CausalEvent]) -> list[Outbound]:
        """Continue a chain after an event, as a copy of its daemon does that did not see everything.

        Events that the copy emitted again are the same and stay; others that this node had heard of are a branch that lost.
        """
        chain = self._chains[origin]
        known, same = chain.log.after(after), 0
        while same < min(len(known), len(events)) and known[same] == events[same]:
            same += 1
        out: list[Outbound] = []
        if same < len(known):
            out = self._reconciler.replace(chain, after + same)
        return [*self._sendable(out), *self.append(origin, events[same:])]

    def prove(self, origin: int) -> list[Outbound]:
        """Send the proof of this node's copy to all members; their verdicts follow.

        Raises DaemonError if the chain is not held, LocalProtocolError if it has no events.
        """
        chain = self._chains.get(origin)
        if chain is None:
            raise DaemonError(DaemonFault.UNKNOWN, origin, "this node does not hold its chain")
        proof = encode_proof(prove(chain.log))
        self._proving.update((origin, node) for node in self._reachable(chain))
        return [(node, Subprotocol.PROOF, proof) for node in self._reachable(chain)]

    def announce_fork(self, record: ForkRecord) -> list[Outbound]:
        """Announce that a chain goes on as another one too."""
        chain = self._chains.get(record.original_origin)
        if chain is None:
            return []
        chain.forks.put(record.forked_origin, record)
        return [(node, Subprotocol.FORK, encode_fork(record)) for node in self._reachable(chain)]

    # ── what peers do ───────────────────────────────────────────────────────────────────────

    def peer_up(self, node: int) -> list[Outbound]:
        """Compare all chains with a node that has become reachable."""
        self._up.add(node)
        chains = (chain for chain in self._chains.values() if node in chain.members)
        return [out for chain in chains for out in self._reconciler.greet(chain, node)]

    def compare(self) -> list[Outbound]:
        """Compare all chains with all members that are reachable."""
        pairs = ((chain, node) for chain in self._chains.values() for node in self._reachable(chain))
        return [out for chain, node in pairs for out in self._reconciler.compare(chain, node)]

    def peer_down(self, node: int) -> None:
        """Settle nothing any more with a node that is not reachable."""
        self._up.discard(node)
        for chain in self._chains.values():
            chain.asked.discard(node)
        self._proving = {pair for pair in self._proving if pair[1] != node}
        self._reconciler.gone(node, list(self._chains.values()))

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        if any(self._can_go_on(self._chains[origin]) for origin in self._lagging):
            return 0.0
        return self._reconciler.next_timer()

    def tick(self, now: float) -> list[Outbound]:
        """Do what is due."""
        out = self._reconciler.tick(self._chains, now)
        for chain in [self._chains[origin] for origin in self._lagging]:
            for node in self._unasked(chain):
                chain.asked.add(node)
                out += self._reconciler.ask(chain, node, now)
        return self._sendable([*out, *self._all_go_on()])

    def handle(self, subprotocol_id: int, message: bytes, sender: int, now: float) -> list[Outbound]:
        """Handle a message of a peer, and return what to send."""
        try:
            out = self._dispatch(subprotocol_id, message, sender, now)
            return self._sendable([*out, *self._all_go_on()])
        except MalformedPacket:
            self._counters.count(Reason.CHAIN_MALFORMED)
            return []

    def _dispatch(self, subprotocol_id: int, message: bytes, sender: int, now: float) -> list[Outbound]:
        match subprotocol_id:
            case Subprotocol.CAUSAL:
                return self._event(decode_causal_event(message), sender, now)
            case Subprotocol.RECONCILE:
                exchanged = decode_reconciliation(message)
                origin = exchanged.record.original_origin if isinstance(exchanged, Branch) else exchanged.origin
                chain = self._known(origin, sender)
                return [] if chain is None else self._reconciler.handle(chain, exchanged, sender, now)
            case Subprotocol.FORK:
                return self._fork(decode_fork(message), sender)
            case Subprotocol.PROOF:
                return self._proof(decode_proof(message), sender, now)
            case _:
                return self._question(message, sender, now)

    # ── what waits ──────────────────────────────────────────────────────────────────────────

    def _all_go_on(self) -> list[Outbound]:
        return [out for origin in sorted(self._lagging) for out in self._go_on(self._chains[origin])]

    def _go_on(self, chain: HeldChain) -> list[Outbound]:
        """Add what waits, as far as it follows the chain."""
        if chain.rivals:
            return []
        del chain.waiting[: sum(1 for _ in takewhile(chain.has, chain.waiting))]
        if chain.lacks():
            if not self._may_begin(chain):
                return []
            before = chain.waiting[0].link
            chain.restart(Point(before.sequence - 1, before.parent_hash))
        events = chain.take_run()
        if not chain.waiting:
            self._lagging.discard(chain.origin)
        if not events:
            return []
        try:
            return self.append(chain.origin, events)
        except LocalProtocolError:
            return self._sendable(self._reconciler.keep(chain, events))

    def _may_begin(self, chain: HeldChain) -> bool:
        """Return whether the copy of this node begins with what waits, because nobody has the events before it."""
        if not chain.members or chain.is_full:
            return True
        reachable = self._reachable(chain)
        answered = chain.asked.issuperset(reachable) and not self._reconciler.is_asking(chain.origin)
        return chain.log.head.link.sequence == 0 and bool(reachable) and answered

    def _unasked(self, chain: HeldChain) -> list[int]:
        lacks = chain.lacks() and not chain.rivals
        return [node for node in self._reachable(chain) if node not in chain.asked] if lacks else []

    def _can_go_on(self, chain: HeldChain) -> bool:
        """Return whether `tick` has something to do for what waits."""
        if chain.rivals:
            return False
        return not chain.lacks() or self._may_begin(chain) or bool(self._unasked(chain))

    def _known(self, origin: int, sender: int) -> HeldChain | None:
        """Return a chain if this node holds it together with the sender."""
        chain = self._chains.get(origin)
        if chain is None:
            self._counters.count(Reason.CHAIN_UNKNOWN)
        elif sender not in chain.members:
            self._counters.count(Reason.REFUSE_CHAIN_SENDER)
            return None
        return chain

    def _event(self, event: CausalEvent, sender: int, now: float) -> list[Outbound]:
        chain = self._known(event.link.origin_hash, sender)
        if chain is None:
            return []
        match chain.append(event):
            case None:
                return []
            case ChainFault.DUPLICATE if chain.log.get(event.link.sequence) == event:
                self._counters.count(Reason.CHAIN_DUPLICATE)
                return []
            case ChainFault.SEQUENCE_GAP:
                self._counters.count(Reason.CHAIN_GAP)
            case ChainFault() as fault:
                # Changed, or another history: the comparison of all events tells which.
                self._counters.count(Reason.CHAIN_BROKEN)
                self._reconciler.reports.append(Broken(origin=chain.origin, peer=sender, fault=fault))
        return self._reconciler.ask(chain, sender, now)

    def _fork(self, record: ForkRecord, sender: int) -> list[Outbound]:
        chain = self._known(record.original_origin, sender)
        if chain is not None and record.forked_origin not in chain.forks:
            chain.forks.put(record.forked_origin, record)
        return []

    def _question(self, message: bytes, sender: int, now: float) -> list[Outbound]:
        match decode_continuity(message):
            case Judged() as judged:
                self._judge(judged, sender)
                return []
            case Prove(origin_hash=origin, from_seq=first, to_seq=last):
                chain = self._known(origin, sender)
                if chain is None:
                    return []
                if not self._allowed(sender, now):
                    return [_judged(sender, Judged(origin, first, last, Verdict.BUSY))]
                try:
                    return [(sender, Subprotocol.PROOF, encode_proof(prove(chain.log, first, last)))]
                except LocalProtocolError:
                    return [_judged(sender, Judged(origin, first, last, Verdict.MISSING_EVENT))]

    def _judge(self, judged: Judged, sender: int) -> None:
        if self._known(judged.origin_hash, sender) is None:
            return
        if (judged.origin_hash, sender) not in self._proving:
            self._counters.count(Reason.CHAIN_UNEXPECTED)
            return
        self._proving.discard((judged.origin_hash, sender))
        self._verdicts.append((sender, judged))

    def _proof(self, proof: ContinuityProof, sender: int, now: float) -> list[Outbound]:
        chain = self._known(proof.origin_hash, sender)
        if chain is None:
            return []
        verdict = Verdict.BUSY
        if self._allowed(sender, now):
            fault = check_proof(proof, chain.log)
            verdict = Verdict.HOLDS if fault is None else Verdict[fault.name]
        judged = Judged(proof.origin_hash, proof.from_seq, proof.to_seq, verdict)
        # A proof that does not hold has found a difference: comparing the events tells where.
        differs = verdict == Verdict.HASH_MISMATCH
        return [_judged(sender, judged), *(self._reconciler.ask(chain, sender, now) if differs else ())]

    def _allowed(self, sender: int, now: float) -> bool:
        rate = self._rates.get(sender)
        if rate is None:
            rate = TokenBucket(PROOFS_PER_S)
            self._rates.put(sender, rate)
        allowed = rate.take(1, now)
        if not allowed:
            self._counters.count(Reason.REFUSE_PROOF_RATE)
        return allowed

    def _reachable(self, chain: HeldChain) -> list[int]:
        return sorted(chain.members & self._up)

    def _sendable(self, out: list[Outbound]) -> list[Outbound]:
        return [one for one in out if one[0] in self._up]


def _judged(node: int, judged: Judged) -> Outbound:
    return node, Subprotocol.CONTINUITY, encode_continuity(judged)
