"""Tests of spotproof."""
