"""A messaging API: group and scheduled messages whose events reach RabbitMQ by the outbox."""
