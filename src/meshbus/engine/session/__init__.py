"""Sessions with peers: handshakes, keys and links, heartbeats, and negotiation of the meshbus profile."""
