"""Run: what a training script holds."""
