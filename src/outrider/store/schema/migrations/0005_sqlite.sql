-- Whether relays of this sink hold an aggregate back behind its failed event.
ALTER TABLE {sinks} ADD COLUMN parks BOOLEAN NOT NULL DEFAULT 0;
