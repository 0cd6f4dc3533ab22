CREATE TABLE {outbox} (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL,
    sink text NOT NULL DEFAULT 'default',
    lane smallint NOT NULL,
    aggregate_key bigint NOT NULL,
    event_type text NOT NULL,
    event_version integer NOT NULL DEFAULT 1,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{{}}',
    occurred_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status text NOT NULL DEFAULT 'pending',
    retry_count integer NOT NULL DEFAULT 0,
    crash_count integer NOT NULL DEFAULT 0,
    max_retries integer,
    next_retry_at timestamptz,
    last_error text,
    published_at timestamptz,
    UNIQUE (id, sink)
) WITH (
    -- Settled rows leave dead index entries in front of pending rows, so vacuum must run often.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02
);
CREATE INDEX {pending_index} ON {outbox} (sink, lane, position) WHERE status = 'pending';
CREATE INDEX {aggregate_index} ON {outbox} (aggregate_key, position) WHERE published_at IS NULL;
CREATE INDEX {waiting_index} ON {outbox} (aggregate_key, position) WHERE next_retry_at IS NOT NULL;
CREATE INDEX {failed_index} ON {outbox} (aggregate_key, position) WHERE status = 'failed';

CREATE TABLE {processed} (
    event_id uuid NOT NULL,
    handler_name text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (event_id, handler_name)
);
CREATE INDEX {processed_index} ON {processed} (processed_at);
