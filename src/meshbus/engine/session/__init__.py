"""One session with one peer: handshakes, keys and links, liveness, and what both sides agreed to use."""
