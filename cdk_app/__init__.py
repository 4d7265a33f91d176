"""What gets deployed."""
