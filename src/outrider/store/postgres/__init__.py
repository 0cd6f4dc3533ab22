"""The outbox store on PostgreSQL."""
