"""Daemons with state that move between nodes: hosting, causal chains, continuity and migration; pure, driven by a node."""
