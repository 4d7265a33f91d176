"""Reads, gathered into one frozen value."""
