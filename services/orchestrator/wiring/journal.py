"""Opens the journal with the configured keys, and waits for a database that is not available yet."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagantic_common.domain.errors import PreconditionFailed, Unavailable
from pagantic_common.rpc.process.starting import WaitedTooLong, not_serving_yet, pause
from pagantic_common.storage.database import is_refused
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.adapters.access.key_files import read_audit_key
from services.orchestrator.adapters.journal.sealing import read_journal_keys
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.servicer import SERVICE_NAME
from services.orchestrator.settings import OrchestratorSettings

RETRY_S = 1.0
INTERRUPTED_TURN_S = 10.0  # Callers that follow an execution send it again within seconds.

log = get_logger(__name__)


@asynccontextmanager
async def open_journal(settings: OrchestratorSettings) -> AsyncIterator[SqlJournal]:
    """Yield the journal.

    Raises InvalidRequest if the key files cannot be used, PreconditionFailed if the database refuses this user,
    WaitedTooLong if the server does not answer within JOURNAL_WAIT_S, and the errors of the journal itself.
    """
    journal = SqlJournal(
        settings.read_journal_url(),
        owner=settings.owner,
        retention_s=settings.retention_s,
        session_retention_s=settings.session_retention_s,
        audit_retention_s=settings.audit_retention_s,
        audit_key=read_audit_key(settings.audit_key_file),
        interrupted_turn_s=INTERRUPTED_TURN_S,
        durability=settings.durability,
        sealing=read_journal_keys(settings.journal_key_file, is_strict=settings.journal_key_strict),
    )
    if (reason := await _try_to_open(journal)) is not None:
        async with not_serving_yet(settings, [SERVICE_NAME], "its database does not answer yet"):
            await _wait_for(journal, settings.journal_wait_s or math.inf, reason)
    try:
        yield journal
    finally:
        await journal.close()


async def _try_to_open(journal: SqlJournal) -> Unavailable | None:
    """Open the journal. Returns None once it is open, or the error if its server does not answer yet."""
    try:
        await journal.open()
    except Unavailable as error:
        if is_refused(error):
            raise PreconditionFailed(str(error)) from None
        if not journal.is_served:
            raise
        return error
    return None


async def _wait_for(journal: SqlJournal, wait_s: float, reason: Unavailable | None) -> None:
    started_s, logged_reason = time.monotonic(), ""
    while reason is not None:
        waited_s = time.monotonic() - started_s
        if waited_s >= wait_s:
            raise WaitedTooLong(f"{reason} (waited {wait_s:g} s, JOURNAL_WAIT_S)", code=reason.code)
        if logged_reason != str(reason):
            logged_reason = str(reason)
            log.warning("waiting for the journal's database", reason=logged_reason, waited_s=round(waited_s))
        await pause(RETRY_S)
        reason = await _try_to_open(journal)
    log.info("the journal's database answers", waited_s=round(time.monotonic() - started_s))
