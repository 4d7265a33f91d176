"""What decides and acts when AWS speaks."""
