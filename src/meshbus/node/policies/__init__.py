"""The policy of an open node: changing it while the node runs, and what arrives from neighbors."""
