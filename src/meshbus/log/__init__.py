"""Durable logs: the schema of events and packets, the log of each channel behind a storage seam, and the recorder."""
