"""How long a test waits for what must happen: long enough on a busy machine, and no time at all where it happens."""

PATIENCE_S = 120.0
