"""Shared basics of the engine: packets, event batches, notices, counters, bounded maps, deadlines, run scanning."""
