"""ZMTP 3.1 as pure state machines: bytes in, bytes and events out. No socket, no clock, no randomness of its own."""
