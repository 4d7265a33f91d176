"""Tests of the story and its page."""
