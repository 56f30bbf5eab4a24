"""The bronze, silver and gold tables: their columns, their files and how their rows are computed."""
