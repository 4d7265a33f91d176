"""Composition root: clients, clock, logger."""
