"""Thin adapters over run, checkpoint and data for trainers that people already use."""
