"""The exception tree of spotproof."""
