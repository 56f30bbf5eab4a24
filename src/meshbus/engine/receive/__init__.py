"""The way in: datagrams are opened, sorted by subprotocol, and handed to whom they concern."""
