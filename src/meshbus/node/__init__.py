"""The node: sockets, timers, tasks and the public API around the engine. It makes no protocol decisions."""
