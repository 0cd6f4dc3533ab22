-- The audit log of actions on events. For a replay, reached is the last position it has processed.
CREATE TABLE {actions} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    who text NOT NULL,
    action text NOT NULL,
    filter text NOT NULL,
    events bigint NOT NULL DEFAULT 0,
    reached bigint,
    finished_at timestamptz
);
