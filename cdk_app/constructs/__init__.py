"""The parts of the stack, one construct per file."""
