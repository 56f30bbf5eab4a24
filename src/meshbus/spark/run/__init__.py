"""Running a pipeline: Spark and Java, the streaming queries, the refresh of gold tables and the report."""
