-- The audit log of actions on events. For a replay, reached is the last position it has processed.
CREATE TABLE {actions} (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at DATETIME NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    filter TEXT NOT NULL,
    events BIGINT NOT NULL DEFAULT 0,
    reached BIGINT,
    finished_at DATETIME
);
