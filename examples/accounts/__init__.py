"""Accounts: signing up in one context creates a profile in another, all in one process."""
