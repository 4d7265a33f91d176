"""The command line: spotproof ..."""
