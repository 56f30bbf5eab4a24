"""What a node writes down and serves: logs of channels, the census, the flight recorder, pages for peers."""
