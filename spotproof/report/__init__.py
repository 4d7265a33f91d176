"""One renderer for the story of a run, used by the CLI, the dashboard widget and the rehearsal."""
