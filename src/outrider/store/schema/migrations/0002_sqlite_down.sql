DROP INDEX {in_schema}{delivered_index};
ALTER TABLE {outbox} DROP COLUMN delivery_number;
DROP TABLE {sinks};
DROP TABLE {relays};
DROP TABLE {lanes};
