"""Executions and sessions count the bytes of their content."""

import sqlalchemy as sa
from alembic import op

from pagantic_common.telemetry.logging import get_logger

log = get_logger(__name__)

revision = "0013"
down_revision = "0012"

ROW_BYTES = 128
OF_EXECUTION = {"events": ["event"], "approvals": ["approval"], "kept_requests": ["request", "metadata_json"]}
OF_SESSION = {"messages": ["message"], "session_state": ["value_json"], "summaries": ["text"]}
TEXTS = {"value_json", "text"}


def upgrade() -> None:
    """Add the counts, and read the length of everything once. Encrypted content counts as it is stored."""
    for table, name in (("executions", "stored_bytes"), ("executions", "entry_bytes"), ("sessions", "stored_bytes")):
        op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    db = op.get_bind()
    if db.execute(sa.text("SELECT 1 FROM executions LIMIT 1")).first() is not None:
        log.info("counting the journal's bytes once")
    ended = "CASE WHEN response IS NULL THEN 0 ELSE length(response) + coalesce(length(last_error), 0) END"
    of_rows = _sums(db, "executions", "request_id", OF_EXECUTION)
    entries = _sums(db, "executions", "request_id", {"entries": ["entry"]})
    counts = f"stored_bytes = {ROW_BYTES} + {ended} + {of_rows}, entry_bytes = {entries}"
    op.execute(f"UPDATE executions SET {counts}")  # noqa: S608 - our names
    of_rows = _sums(db, "sessions", "session_id", OF_SESSION)
    op.execute(f"UPDATE sessions SET stored_bytes = {ROW_BYTES} + {of_rows}")  # noqa: S608 - our names
    op.create_index("executions_by_size", "executions", ["tenant", "stored_bytes", "entry_bytes"])


def _sums(db: sa.Connection, owner: str, key: str, contents: dict[str, list[str]]) -> str:
    """Return the SQL of the bytes in the rows of other tables that belong to a row."""
    sums = []
    for table, columns in contents.items():
        size = " + ".join([str(ROW_BYTES), *(_length(db, f"{table}.{column}", column in TEXTS) for column in columns)])
        mine = f"{table}.tenant = {owner}.tenant AND {table}.{key} = {owner}.{key}"
        sums.append(f"(SELECT coalesce(sum({size}), 0) FROM {table} WHERE {mine})")  # noqa: S608 - our names
    return " + ".join(sums)


def _length(db: sa.Connection, column: str, is_text: bool) -> str:
    if not is_text:
        return f"length({column})"
    if db.dialect.name == "sqlite":
        return f"length(CAST({column} AS BLOB))"
    return f"octet_length({column})"
