"""Runs the steps that a database lacks, on the connection that it is given."""

from alembic import context
from sqlalchemy import text

from services.orchestrator.adapters.journal.schema import TABLES

LOCK = 7_201_946  # of this program among the database's advisory locks

connection = context.config.attributes["connection"]
if connection.dialect.name == "postgresql":
    # Replicas that start together wait here for the one that migrates; the lock goes with its transaction.
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text("SET LOCAL lock_timeout = 0"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
context.configure(connection=connection, target_metadata=TABLES)
context.run_migrations()
