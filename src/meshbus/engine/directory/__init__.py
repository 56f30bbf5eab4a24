"""Announcements: this node's own, and those of other nodes."""
