"""Tests: conformance."""
