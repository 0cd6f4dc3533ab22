"""Small, complete applications; each runs by `python -m examples.<name>`."""
