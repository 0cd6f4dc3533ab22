"""The outbox store of a relay, on PostgreSQL and SQLite."""
