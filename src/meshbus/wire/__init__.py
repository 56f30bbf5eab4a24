"""Bytes and values: every packet and message of the mesh, and the state of handshake and sealing. No I/O."""
