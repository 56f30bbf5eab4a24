"""The policy of an open node: changing it while the node runs, and the history of its changes."""
