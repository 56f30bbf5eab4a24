"""Streams with one peer: what waits to go out, credit, acknowledgement and retransmission, and events on their way in."""
