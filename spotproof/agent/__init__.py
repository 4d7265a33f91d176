"""The daemon of a node: hears notices, spends the last seconds, uploads, heartbeats."""
