"""Tests: rehearsal."""
