"""The embedded backend: a log in the files of one folder, hot blocks that become Parquet segments."""
