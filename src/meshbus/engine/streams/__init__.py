"""Streams with peers: send queues, credit, acknowledgement and retransmission, and delivery of received events."""
