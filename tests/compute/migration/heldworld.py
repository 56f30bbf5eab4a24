"""A world whose machines hold the history of the daemon together with an observer that never crashes.

Copies are in memory, so that a machine that crashes begins with an empty one, and with the outputs that its last checkpoint
has: they may be in the history of the others or not. The checker holds that in the end all copies are what a single
machine would have emitted, and that no branch was ever lost.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.compute.causal import EntityLog
from meshbus.compute.host import DaemonHost
from tests.compute.counter import Counter, run_alone
from tests.compute.keepers import KeeperNet, Keeping
from tests.compute.migration.world import DAEMON, Machine, Violation, World

OBSERVER = 99


class HeldWorld(World):
    """The same world, with a history."""

    def __init__(self, seed: int, events: int, *, machines: int = 4, create: Callable[[], Counter] = Counter) -> None:
        self.histories = KeeperNet(OBSERVER, seed=seed)
        self._hold(OBSERVER)
        super().__init__(seed, events, machines=machines, create=create)

    def start(self, machine: Machine) -> None:
        others = list(self.histories.nodes)
        self.histories.nodes[machine.node] = Keeping(self.histories, machine.node)
        self._hold(machine.node)
        self.histories.connect(*((machine.node, other) for other in others))
        super().start(machine)

    def crash(self, machine: Machine) -> None:
        if machine.node in self.histories.nodes:
            # What a machine has sent arrives; a history in memory cannot promise more.
            self.histories.run()
            self.histories.cut(*((machine.node, other) for other in self.histories.nodes if other != machine.node))
            del self.histories.nodes[machine.node]
        super().crash(machine)

    def publish(self, machine: Machine, host: DaemonHost) -> None:
        if host.pending:
            self._crash_point(machine)
            keeper = self.histories.nodes[machine.node].keeper
            self.histories.post(machine.node, keeper.emit(host.origin, host.pending))
            for _ in range(self.rng.randrange(20)):
                self.histories.step()
        super().publish(machine, host)

    def check(self) -> None:
        super().check()
        self.histories.run()
        _, outputs = run_alone(self.payloads)
        for node, keeping in self.histories.nodes.items():
            chain = keeping.keeper.chain(DAEMON.origin_hash)
            if chain is None or chain.branches or chain.waiting:
                raise Violation(f"the copy of {node} is not whole")
            if [event.payload for event in chain.log.events] != outputs:
                raise Violation(f"the copy of {node} is not what a single machine would have emitted")

    def _hold(self, node: int) -> None:
        members = {OBSERVER, *range(1, 10)} - {node}
        keeper = self.histories.nodes[node].keeper
        self.histories.post(node, keeper.hold(EntityLog(DAEMON.origin_hash), members))
