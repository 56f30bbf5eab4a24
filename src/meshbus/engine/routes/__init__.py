"""Ways beyond neighbors: who is heard, which neighbor leads where, forwarding for others, and the gateway on it."""
