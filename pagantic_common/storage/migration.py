"""Migrates a database to the tables of this version, with the migrations of its service."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

from alembic import command, context
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, inspect, text

from pagantic_common.domain.errors import PreconditionFailed


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a service.

    Attributes:
        tables: The tables as the migrations create them.
        scripts: The folder of the migrations, as package:folder.
        version_table: The table that holds the revision of the database.
        lock: The number of this schema's advisory lock in a PostgreSQL database.
        name: Name of the database in messages, such as "the journal".
        advice: The remedy if the database is unusable.
    """

    tables: MetaData
    scripts: str
    version_table: str
    lock: int
    name: str
    advice: str


def migrate(connection: Connection, schema: Schema) -> None:
    """Migrate a database to this version's tables, in the transaction of the connection.

    Not thread-safe: call it from one thread of a process at a time. Raises PreconditionFailed if a later version wrote
    the database, or if the database lacks tables or columns after the migration.
    """
    scripts = _scripts_of(schema.scripts)
    options = {"version_table": schema.version_table}
    revisions = set(MigrationContext.configure(connection, opts=options).get_current_heads())
    for revision in revisions - {script.revision for script in scripts.walk_revisions()}:
        raise PreconditionFailed(
            f"{schema.name}'s database was written by a later version of pagantic (revision {revision!r}): start "
            f"that version, or {schema.advice}"
        )
    if revisions != set(scripts.get_heads()):
        logging.getLogger("alembic").setLevel(logging.WARNING)  # Alembic logs its assumptions at each start.
        config = Config()
        config.set_main_option("script_location", schema.scripts)
        config.attributes["connection"] = connection
        config.attributes["schema"] = schema
        command.upgrade(config, "head")
    if missing := _find_missing(connection, schema):
        names = ", ".join(map(repr, missing))
        raise PreconditionFailed(f"{schema.name}'s database lacks {names}, so it is another program's: {schema.advice}")


def run_steps() -> None:
    """Run the steps that a database lacks, on the connection passed to `migrate`. Called by a folder's env.py."""
    connection: Connection = context.config.attributes["connection"]
    schema: Schema = context.config.attributes["schema"]
    if connection.dialect.name == "postgresql":
        # Replicas that start together wait here for the migrating replica, until its transaction ends.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": schema.lock})
    context.configure(connection=connection, target_metadata=schema.tables, version_table=schema.version_table)
    context.run_migrations()


@cache
def _scripts_of(location: str) -> ScriptDirectory:
    """Return the migrations in a folder. Reading them takes longer than checking an up-to-date database."""
    config = Config()
    config.set_main_option("script_location", location)
    return ScriptDirectory.from_config(config)


def _find_missing(connection: Connection, schema: Schema) -> list[str]:
    """Return the tables and columns that the database lacks, sorted."""
    column_lists = inspect(connection).get_multi_columns()
    columns = {name: {column["name"] for column in listed} for (_, name), listed in column_lists.items()}
    missing = [name for name in schema.tables.tables if name not in columns]
    for table in schema.tables.tables.values():
        expected = {column.name for column in table.columns}
        missing += [f"{table.name}.{column}" for column in expected - columns.get(table.name, expected)]
    return sorted(missing)
