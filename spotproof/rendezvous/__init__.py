"""Membership for torchrun without a host node."""
