"""Replicated logs under load: NATS JetStream with three servers, and meshbus with three members, all on loopback.

A contender is started, appends events while somebody measures, and loses its leader (contender.py). One module for each:
jetstream.py with ingest.py, and members.py with member.py, the program of one process.
"""
