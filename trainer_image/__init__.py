"""What becomes the container: the reference trainer and its image."""
