"""Nodes among which a daemon moves, in processes of their own; see bench_daemons.py."""
