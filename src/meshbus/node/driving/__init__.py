"""The event loop side of a node: sockets, timers, tasks, and the engine that they drive."""
