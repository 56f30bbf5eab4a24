"""Receive path: opens datagrams, sorts packets by subprotocol, and passes them to services and delivery."""
