"""Routes to nodes that are not neighbors: pingwaves, the routing table, forwarding, relays, and the subnet gateway."""
