"""Nodes as network namespaces: real launchers, real deaths."""
