"""Opens the journal, with the keys that its settings name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.orchestrator.adapters.access.key_files import read_audit_key
from services.orchestrator.adapters.journal.sealing import read_journal_keys
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.settings import OrchestratorSettings


@asynccontextmanager
async def open_journal(settings: OrchestratorSettings) -> AsyncIterator[SqlJournal]:
    """Yield the journal. Raises InvalidRequest for files of keys that cannot be used, and the journal's own errors."""
    journal = SqlJournal(
        settings.read_journal_url(),
        owner=settings.owner,
        retention_s=settings.retention_s,
        session_retention_s=settings.session_retention_s,
        audit_retention_s=settings.audit_retention_s,
        audit_key=read_audit_key(settings.audit_key_file),
        interrupted_turn_s=settings.interrupted_turn_s,
        durability=settings.durability,
        sealing=read_journal_keys(settings.journal_key_file),
    )
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()
