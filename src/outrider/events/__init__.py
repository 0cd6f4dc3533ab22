"""Declaring events, and turning them into JSON and back."""
