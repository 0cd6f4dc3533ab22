CREATE TABLE {outbox} (
    position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id CHAR(32) NOT NULL,
    sink TEXT NOT NULL DEFAULT 'default',
    lane SMALLINT NOT NULL,
    aggregate_key BIGINT NOT NULL,
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL DEFAULT 1,
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    payload JSON NOT NULL,
    metadata JSON NOT NULL DEFAULT '{{}}',
    occurred_at DATETIME NOT NULL,
    created_at DATETIME NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    status TEXT NOT NULL DEFAULT 'pending',
    retry_count INTEGER NOT NULL DEFAULT 0,
    crash_count INTEGER NOT NULL DEFAULT 0,
    max_retries INTEGER,
    next_retry_at DATETIME,
    last_error TEXT,
    published_at DATETIME,
    UNIQUE (id, sink)
);
CREATE INDEX {pending_index} ON {outbox} (sink, position) WHERE status = 'pending';
CREATE INDEX {aggregate_index} ON {outbox} (aggregate_key, position) WHERE published_at IS NULL;
CREATE INDEX {waiting_index} ON {outbox} (aggregate_key, position) WHERE next_retry_at IS NOT NULL;
CREATE INDEX {failed_index} ON {outbox} (aggregate_key, position) WHERE status = 'failed';

CREATE TABLE {processed} (
    event_id CHAR(32) NOT NULL,
    handler_name TEXT NOT NULL,
    processed_at DATETIME NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    PRIMARY KEY (event_id, handler_name)
);
CREATE INDEX {processed_index} ON {processed} (processed_at);
