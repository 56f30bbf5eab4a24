"""Sessions with other nodes: dialing, redialing, and what is known and reported about peers."""
