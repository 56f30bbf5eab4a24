"""Daemons on an open node: hosting, running, moving them, and their histories and groups."""
