"""The journal in a SQL database, either SQLite or PostgreSQL."""
