"""Settings: what can be set about a node, where it may be written, how it is spelled. Reads files and the environment."""

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
