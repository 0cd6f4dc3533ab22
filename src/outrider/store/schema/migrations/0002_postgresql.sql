-- Relays lease lanes. Settled events get a delivery number, which counts up per sink.
CREATE TABLE {lanes} (
    sink text NOT NULL,
    lane smallint NOT NULL,
    owner uuid,
    token bigint NOT NULL DEFAULT 0,
    expires_at timestamptz,
    PRIMARY KEY (sink, lane)
);
CREATE TABLE {relays} (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    sink text NOT NULL,
    started_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE TABLE {sinks} (
    sink text PRIMARY KEY,
    last_delivery_number bigint NOT NULL DEFAULT 0
);
ALTER TABLE {outbox} ADD COLUMN delivery_number bigint;
CREATE INDEX {delivered_index} ON {outbox} (sink, delivery_number) WHERE delivery_number IS NOT NULL;
