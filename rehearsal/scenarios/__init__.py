"""Weather that the story of `make rehearse` does not have. One file each: plan, script, promises, sabotage."""
