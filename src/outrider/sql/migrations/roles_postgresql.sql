GRANT INSERT ON {outbox} TO {producer};
GRANT SELECT, DELETE, UPDATE ({state_columns}) ON {outbox} TO {relay};
GRANT SELECT, INSERT, UPDATE, DELETE ON {lanes}, {relays}, {sinks} TO {relay};
GRANT SELECT ON {version} TO {relay};
GRANT SELECT, INSERT, DELETE ON {processed} TO {consumer};
