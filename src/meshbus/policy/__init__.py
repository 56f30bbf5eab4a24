"""Decisions: who may do what, what passes where, what matches. Values in, verdicts out; no I/O."""
