"""An event logger: what is sent to a message API is shown live in browsers, by the outbox."""
