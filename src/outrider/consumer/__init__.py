"""Consuming events: runs handlers for the messages of a broker, each with one effect."""
