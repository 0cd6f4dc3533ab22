"""Finding the programs of private servers, and installing them if that is allowed."""
