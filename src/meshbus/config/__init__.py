"""Settings of a node: which exist, how values are written, and how they are read from a file and the environment."""

from meshbus.config.edge import EdgeEntry, EdgeSecurity
from meshbus.config.node import ChannelEntry, NodeConfig, PeerEntry, Unknown
from meshbus.config.spelling import Endpoint, parse_endpoint

__all__ = [
    "ChannelEntry",
    "EdgeEntry",
    "EdgeSecurity",
    "Endpoint",
    "NodeConfig",
    "PeerEntry",
    "Unknown",
    "parse_endpoint",
]
