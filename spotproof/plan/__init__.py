"""Pure models over contract types: checkpoint interval, cost, pool order."""
