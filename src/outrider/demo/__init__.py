"""The demo: the messaging example with a page that shows its events and can break its parts."""
