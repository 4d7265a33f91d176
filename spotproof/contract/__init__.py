"""The one home of everything that two places must agree on: tags, events, states, items, keys, commands, metrics."""
