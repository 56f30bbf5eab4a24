"""Replaying a policy over recorded packets and events, in the JVM and in Python workers."""

from meshbus.spark.replay.replay import replay_events, replay_packets

__all__ = ["replay_events", "replay_packets"]
