"""Integrations with frameworks and libraries that an application already uses."""
