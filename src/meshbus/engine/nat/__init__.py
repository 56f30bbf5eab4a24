"""NAT traversal: observed addresses, introductions, hole punching, and the steps by which a node is reached."""
