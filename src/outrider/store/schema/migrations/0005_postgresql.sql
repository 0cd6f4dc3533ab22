-- Whether relays of this sink hold an aggregate back behind its failed event.
ALTER TABLE {sinks} ADD COLUMN parks boolean NOT NULL DEFAULT false;
