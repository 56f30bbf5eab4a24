"""Publishing, subscribing and requests on an open node."""
