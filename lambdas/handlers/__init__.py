"""One entry per queue or schedule."""
