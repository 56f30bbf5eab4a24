"""What a node shows over HTTP: metrics and health. Nothing here changes a node."""
