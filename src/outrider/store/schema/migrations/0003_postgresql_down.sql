DROP TABLE {actions};
