"""The messaging example with a page to watch it, and buttons that break things."""
