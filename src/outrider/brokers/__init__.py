"""One file per sink, each with its publisher and, where there is one, its subscriber."""
