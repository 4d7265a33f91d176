"""A whole region on one machine: it runs what was deployed."""
