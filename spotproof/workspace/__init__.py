"""Backup of the working folder that follows the run."""
