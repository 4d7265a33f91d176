"""EC2 instances as process groups: each runs the deployed user data, has its own IMDS, and dies at its deadline."""
