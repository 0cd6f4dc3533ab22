-- What people did to events: who, when, to which, to how many. A replay also notes how far it came.
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
