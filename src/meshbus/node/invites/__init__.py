"""Invites: how a node of the fleet admits a newcomer, and how a newcomer joins."""
