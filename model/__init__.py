"""The protocol as a model that is searched exhaustively: `make model`."""
