"""The live node: sockets, timers, tasks and the public API around the pure engine. It decides nothing about bytes."""
