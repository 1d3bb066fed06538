"""Collections in a database: a SQLite file, or a PostgreSQL database that several replicas share."""
