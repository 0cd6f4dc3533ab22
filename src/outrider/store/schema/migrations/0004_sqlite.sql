-- The last attempts that the sink refused, each with its number, time and reason.
ALTER TABLE {outbox} ADD COLUMN attempts JSON;
