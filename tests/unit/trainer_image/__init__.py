"""Tests of the reference trainer and its image."""
