"""Reading logs and recorded packets into Spark, and writing rows back into a log."""
