"""The durable log of each channel: its schema, segments, recovery, retention and replication. It never opens a socket."""
