"""A small shop that shows events travelling, with buttons that break things."""
