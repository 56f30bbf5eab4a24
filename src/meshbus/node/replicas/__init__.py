"""Replicated channels on an open node: disks, members, publishing through the leader, operators' changes."""
