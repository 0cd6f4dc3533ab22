DROP TABLE {processed};
DROP TABLE {outbox};
