"""Private servers, one module for each kind."""
