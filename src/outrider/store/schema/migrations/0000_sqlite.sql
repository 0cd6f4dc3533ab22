CREATE TABLE IF NOT EXISTS {version} (
    version INTEGER NOT NULL PRIMARY KEY,
    applied_at DATETIME NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
);
