"""Tests: cases."""
