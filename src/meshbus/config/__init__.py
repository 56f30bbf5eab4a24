"""Settings of a node: which exist, how values are written, and how they are read from a file and the environment."""

from meshbus.config.edge import EdgeEntry, EdgeSecurity
from meshbus.config.node import ChannelEntry, NodeConfig, PeerEntry, Unknown
from meshbus.config.policy import PolicyConfig, Unlisted
from meshbus.config.spelling import Endpoint, parse_endpoint
from meshbus.config.subscription import SubscriptionEntry

__all__ = [
    "ChannelEntry",
    "EdgeEntry",
    "EdgeSecurity",
    "Endpoint",
    "NodeConfig",
    "PeerEntry",
    "PolicyConfig",
    "SubscriptionEntry",
    "Unknown",
    "Unlisted",
    "parse_endpoint",
]
