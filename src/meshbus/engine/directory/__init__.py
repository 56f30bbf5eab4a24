"""Announcements: what this node says about itself, and what it heard from others."""
