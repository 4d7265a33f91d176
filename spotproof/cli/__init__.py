"""`spotproof ...`."""
