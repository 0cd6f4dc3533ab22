DROP TABLE {version};
