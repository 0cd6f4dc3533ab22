"""An AMQP 0-9-1 client with what publisher and source need."""
