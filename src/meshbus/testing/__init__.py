"""Simulated and real nodes for tests of programs that use the mesh. No other package of meshbus imports this one."""
