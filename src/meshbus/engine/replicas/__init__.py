"""Replicated channels: roles, elections, catch-up, and leadership with epochs; pure, driven by messages and time."""
