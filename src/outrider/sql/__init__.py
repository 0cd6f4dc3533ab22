"""The outbox in SQL: tables, writing, claiming, waking up, migrations."""
