"""Writing Parquet from runs of equal values: what the logs of events and of packets have in common."""
