"""Tests of the copies of tables on object storage."""
