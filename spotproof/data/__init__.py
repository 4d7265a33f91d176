"""Leased shards and the resumable position in the data."""
