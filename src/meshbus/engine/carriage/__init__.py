"""Whole messages between peers and the parts of a node above the engine; see carrier.py."""
