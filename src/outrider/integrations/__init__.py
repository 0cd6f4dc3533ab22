"""Bridges to frameworks and libraries that an application already uses."""
