"""The tables: their names, their definition, migrations and checks."""
