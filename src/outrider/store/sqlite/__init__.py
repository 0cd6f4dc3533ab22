"""The outbox store on SQLite."""
