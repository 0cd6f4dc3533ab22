"""Tools for the tests of code that uses outrider."""
