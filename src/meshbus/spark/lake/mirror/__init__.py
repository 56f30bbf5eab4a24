"""Copies of tables on object storage, which the library of their format commits."""
