"""From state_dict to snapshot, local copy, upload, manifest and pointer, and back."""
