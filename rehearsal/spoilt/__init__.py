"""What a sabotage puts first on the PYTHONPATH of every container: never imported by anything else."""
