"""Reaching nodes behind NATs: observed addresses, introductions, punching, and the ladder that tries them in turn."""
