"""Names of things: channels, subnets, identities. Pure values, no I/O."""
