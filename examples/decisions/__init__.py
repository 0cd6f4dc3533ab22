"""Decision sessions: a use case and its event in one unit of work, a dashboard fed by Redis."""
