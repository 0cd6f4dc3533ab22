"""Recording events in the caller's own transaction."""
