"""The journal in a SQL database: SQLite or PostgreSQL."""
