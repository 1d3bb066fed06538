"""Usage and budgets by subject: the callers of a tenant by their names."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

KEYS = {"usage_totals": ["tenant", "session_id", "model", "subject"], "budgets": ["tenant", "subject"]}


def upgrade() -> None:
    """Add the column to both tables and their keys; what exists belongs to no subject."""
    db = op.get_bind()
    for table, key in KEYS.items():
        if db.dialect.name == "sqlite":
            _copy(db, table, key)
            continue
        op.add_column(table, sa.Column("subject", sa.Text, nullable=False, server_default=""))
        op.alter_column(table, "subject", server_default=None)
        op.drop_constraint(f"{table}_pkey", table)
        op.create_primary_key(f"{table}_pkey", table, key)


def _copy(db: sa.Connection, name: str, key: list[str]) -> None:
    """Make the table anew, and move its rows."""
    old = sa.Table(name, sa.MetaData(), autoload_with=db)
    columns = [sa.Column(one.name, one.type, nullable=one.nullable) for one in old.columns]
    op.rename_table(name, "before_subjects")
    op.create_table(
        name,
        *columns,
        sa.Column("subject", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint(*key),
        sqlite_with_rowid=name != "usage_totals",
    )
    names = ", ".join(one.name for one in old.columns)
    db.execute(sa.text(f"INSERT INTO {name} ({names}, subject) SELECT {names}, '' FROM before_subjects"))  # noqa: S608
    op.drop_table("before_subjects")
