"""The messages of the subprotocols, one file each. A message is one event of a packet."""
