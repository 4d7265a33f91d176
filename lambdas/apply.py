"""Performs actions in order."""
