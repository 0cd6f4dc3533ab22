-- Relays lease lanes. Settled events get a delivery number, which counts up per sink.
CREATE TABLE {lanes} (
    sink TEXT NOT NULL,
    lane SMALLINT NOT NULL,
    owner CHAR(32),
    token BIGINT NOT NULL DEFAULT 0,
    expires_at DATETIME,
    PRIMARY KEY (sink, lane)
);
CREATE TABLE {relays} (
    id CHAR(32) NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    sink TEXT NOT NULL,
    started_at DATETIME NOT NULL,
    expires_at DATETIME NOT NULL
);
CREATE TABLE {sinks} (
    sink TEXT NOT NULL PRIMARY KEY,
    last_delivery_number BIGINT NOT NULL DEFAULT 0
);
ALTER TABLE {outbox} ADD COLUMN delivery_number BIGINT;
CREATE INDEX {delivered_index} ON {outbox} (sink, delivery_number) WHERE delivery_number IS NOT NULL;
