"""Replay of a new policy over recorded packets, for `meshbus policy diff --replay`.

The packets are those of one gateway, below its log_dir or in the tables of a pipeline. Its subnet is the one that it recorded
with its packets, or that of the configuration, which tables do not have.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from meshbus.errors import ConfigError

if TYPE_CHECKING:
    from meshbus.config.node import NodeConfig
    from meshbus.config.policy import PolicyConfig
    from meshbus.names.subnet import SubnetId
    from meshbus.policy.gatewaypolicy import GatewayPolicy
    from meshbus.spark.replay.replay import Replay


class Recorded:
    """Packets of one gateway."""

    def __init__(self, place: Path, recorder: str | None, settings: NodeConfig) -> None:
        """Find the packets. Raises ConfigError if it is not clear whose packets are meant."""
        from meshbus.log.packets.reader import list_recorders

        self._place = place
        self._settings = settings
        self._recorders = list_recorders(place)
        self._recorder = self._only() if recorder is None else _node_id(recorder)

    def replay(self, policy: PolicyConfig, start: datetime | None, end: datetime | None) -> Replay:
        """Judge the packets of a time span by a policy, and compare. Raises ConfigError and LogError."""
        from meshbus.spark.replay.records import replay_records
        from meshbus.spark.replay.tally import Chosen

        if not self._recorders:
            return self._replay_tables(policy, start, end)
        rules = self._rules(policy, self._recorded_subnet())
        return replay_records(self._place, rules, Chosen(self._recorder, start, end))

    def _replay_tables(self, policy: PolicyConfig, start: datetime | None, end: datetime | None) -> Replay:
        from meshbus.cli.pipeline import Where
        from meshbus.spark.lake.tablestore import open_store
        from meshbus.spark.replay.replay import replay_packets

        rules, store = self._rules(policy, self._settings.subnet), open_store(self._place)
        spark = Where().session()
        try:
            return replay_packets(spark, store, rules, recorder=self._recorder, start=start, end=end)
        finally:
            spark.stop()

    def _rules(self, policy: PolicyConfig, subnet: SubnetId) -> GatewayPolicy:
        """Return the rules by which the gateway would judge."""
        rules = policy.gateway_policy(self._recorder, self._settings.name, subnet)
        if rules is None:
            called = f"{self._recorder:016x}" + (f" ({self._settings.name})" if self._settings.name else "")
            raise ConfigError(
                "--replay",
                f"node {called} is not in [[gateways]] of the new policy, so it would forward every packet; add it, choose"
                " another gateway with --recorder, or choose its configuration with --config",
            )
        return rules

    def _recorded_subnet(self) -> SubnetId:
        from meshbus.log.packets.policies import load_policies
        from meshbus.log.packets.store import folder_of
        from meshbus.names.subnet import SubnetId

        policies = load_policies(folder_of(self._place, self._recorder))
        return SubnetId(policies[max(policies)].local_subnet) if policies else self._settings.subnet

    def _only(self) -> int:
        if len(self._recorders) == 1:
            return self._recorders[0]
        if not self._recorders:
            problem = (
                f"required, because {self._place} is not a log_dir with recorded packets; give the id of the gateway"
            )
        else:
            nodes = ", ".join(f"{one:016x}" for one in self._recorders)
            problem = f"required, because several nodes recorded packets; choose from {nodes}"
        raise ConfigError("--recorder", problem)


def _node_id(text: str) -> int:
    from meshbus.config.spelling import parse_node_id

    try:
        return parse_node_id(text)
    except ValueError as error:
        raise ConfigError("--recorder", str(error)) from None
