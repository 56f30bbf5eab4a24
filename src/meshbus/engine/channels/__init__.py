"""Channels: who may subscribe and publish, who does, publishing, requests, interest in prefixes, reading history."""
