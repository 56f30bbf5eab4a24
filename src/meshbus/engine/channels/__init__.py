"""Channels: authorization, subscriptions, publishing, requests and replies, interest in prefixes, and history."""
