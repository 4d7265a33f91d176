"""Tests: checkpoint."""
