"""Moving a daemon from a source to a target (0x0500): one file per role, and one that dispatches."""
