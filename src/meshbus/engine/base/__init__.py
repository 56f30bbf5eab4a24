"""What everything in the engine stands on: packets and batches, notices, counters, bounded maps, deadlines, run scanning."""
