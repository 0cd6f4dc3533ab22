ALTER TABLE {outbox} DROP COLUMN attempts;
