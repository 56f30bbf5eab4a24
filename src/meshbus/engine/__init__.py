"""One node as a state machine: datagrams and a clock reading in, datagrams and events out. No I/O."""
