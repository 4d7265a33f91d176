"""Tests: synth."""
