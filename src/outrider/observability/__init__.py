"""Signals for people and machines: logs, metrics, traces."""
