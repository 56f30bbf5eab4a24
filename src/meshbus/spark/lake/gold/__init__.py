"""The gold tables: one module per table, each with a `TABLE` (spark/lake/goldtable.py)."""
