"""Tests of the contract: everything that two places agree on."""
