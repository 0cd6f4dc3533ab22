"""The relay: brings recorded events to a sink, in order per aggregate."""
