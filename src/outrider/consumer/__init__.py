"""The consumer: brings messages of a broker to handlers, which take effect once."""
