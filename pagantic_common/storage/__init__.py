"""SQL databases of services (SQLite files and PostgreSQL, by URL), and the settings file."""
