-- What people did to events: who, when, to which, to how many. A replay also notes how far it came.
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
