"""One action each, no ifs: ssm, fleet, notify."""
