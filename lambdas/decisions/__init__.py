"""Pure: message, facts and now become actions."""
