"""What the remaining seconds of a node are worth: pure decisions."""
