"""Stores approvals of tool calls in the journal's database."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Connection, Select, and_, or_, select, update

from pagantic.orchestrator.v1 import approval_pb2
from pagantic_common.domain.errors import NotFound, PreconditionFailed
from pagantic_common.storage.database import ROW_BYTES
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.changes.hub import topic_of
from services.orchestrator.adapters.journal.rows import (
    IS_PARKED,
    add_bytes,
    get_record,
    hold,
    of_execution,
    read_token,
    token_of,
    wrong_token,
)
from services.orchestrator.adapters.journal.schema import approvals, executions
from services.orchestrator.adapters.journal.sealing import content_size, opened, sealed
from services.orchestrator.convert.approval import approval_from_proto, approval_to_proto
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.tools.approval import Approval, Resolution
from services.orchestrator.ports.approvals import ApprovalStore
from services.orchestrator.ports.page import Page

_HAS_NOT_ENDED = and_(
    executions.c.tenant == approvals.c.tenant,
    executions.c.request_id == approvals.c.request_id,
    executions.c.response.is_(None),
)


class SqlApprovals(JournalAccess, ApprovalStore):
    """Approvals by execution and call. A page token holds the time, execution and call of the last approval."""

    async def ask_approval(self, key: ExecutionKey, asked: Approval) -> Approval:
        stored: Approval = await self._commit(lambda db: self._ask(db, key, asked))
        return stored

    async def get_approval(self, key: ExecutionKey, tool_call_id: str) -> Approval:
        return await self._read(key.tenant, lambda db: _get(db, key, tool_call_id))

    async def resolve_approval(self, key: ExecutionKey, tool_call_id: str, resolution: Resolution) -> Approval:
        changed = [topic_of(key)]
        now_s = self._now_s()
        resolved: Approval = await self._commit(
            lambda db: _resolve(db, key, tool_call_id, resolution, now_s), changed=changed
        )
        return resolved

    async def list_approvals(self, *, tenant: str, limit: int, after: str, request_id: str) -> Page[Approval]:
        at, execution, call = approvals.c.requested_at, approvals.c.request_id, approvals.c.tool_call_id
        query = select(approvals).join(executions, _HAS_NOT_ENDED).order_by(at, execution, call)
        query = query.where(approvals.c.tenant == tenant, approvals.c.is_open == 1)
        if request_id:
            query = query.where(execution == request_id)
        if after:
            after_s, *names = _place_of(after)
            is_later = and_(at == after_s, or_(execution > names[0], and_(execution == names[0], call > names[1])))
            query = query.where(or_(at > after_s, is_later))
        return await self._read(tenant, lambda db: _page(db, query, limit))

    def _ask(self, db: Connection, key: ExecutionKey, asked: Approval) -> Approval:
        hold(db, executions, of_execution(executions, key))
        payload = db.execute(select(approvals.c.approval).where(_of_call(key, asked.tool_call_id))).scalar()
        stored = _approval_of(db, key, asked.tool_call_id, payload) if payload is not None else None
        if stored is not None and stored.is_for(asked):
            return stored
        proto = approval_to_proto(asked).SerializeToString()
        row: dict[str, Any] = {
            "tenant": key.tenant,
            "request_id": key.request_id,
            "tool_call_id": asked.tool_call_id,
            "requested_at": asked.requested_at.timestamp(),
            "is_open": 1,
            "approval": sealed(db, approvals.c.approval, proto, *key, asked.tool_call_id),
        }
        added = self._insert(approvals).values(row)
        names = ["tenant", "request_id", "tool_call_id"]
        db.execute(added.on_conflict_do_update(index_elements=names, set_=row))
        earlier_bytes = 0 if payload is None else ROW_BYTES + content_size(payload)
        add_bytes(db, executions, of_execution(executions, key), ROW_BYTES + len(proto) - earlier_bytes)
        return asked


def _of_call(key: ExecutionKey, tool_call_id: str) -> Any:
    return and_(of_execution(approvals, key), approvals.c.tool_call_id == tool_call_id)


def _page(db: Connection, found: Select[Any], limit: int) -> Page[Approval]:
    rows = db.execute(found.limit(limit + 1)).all()
    page = [
        _approval_of(db, ExecutionKey(row.tenant, row.request_id), row.tool_call_id, row.approval)
        for row in rows[:limit]
    ]
    if len(rows) <= limit:
        return Page(page)
    last = rows[limit - 1]
    return Page(page, token_of(last.requested_at.hex(), last.request_id, last.tool_call_id))


def _approval_of(db: Connection, key: ExecutionKey, tool_call_id: str, stored: bytes) -> Approval:
    proto = opened(db, approvals.c.approval, stored, *key, tool_call_id)
    return approval_from_proto(approval_pb2.Approval.FromString(proto))


def _get(db: Connection, key: ExecutionKey, tool_call_id: str) -> Approval:
    return _approval_of(db, key, tool_call_id, _stored(db, key, tool_call_id))


def _stored(db: Connection, key: ExecutionKey, tool_call_id: str) -> bytes:
    stored: bytes | None = db.execute(select(approvals.c.approval).where(_of_call(key, tool_call_id))).scalar()
    if stored is None:
        raise NotFound(f"no call {tool_call_id!r} of execution {key.request_id!r} needs an approval")
    return stored


def _resolve(db: Connection, key: ExecutionKey, tool_call_id: str, resolution: Resolution, now_s: float) -> Approval:
    """Store a decision. A parked execution is due from then on."""
    hold(db, executions, of_execution(executions, key))
    payload = _stored(db, key, tool_call_id)
    approval = _approval_of(db, key, tool_call_id, payload)
    if approval.resolution is not None:
        return approval
    if get_record(db, key).response is not None:
        raise PreconditionFailed(f"execution {key.request_id!r} has ended, so its calls need no approval")
    resolved = approval.resolved(resolution)
    proto = approval_to_proto(resolved).SerializeToString()
    stored = sealed(db, approvals.c.approval, proto, *key, tool_call_id)
    db.execute(update(approvals).where(_of_call(key, tool_call_id)).values(is_open=0, approval=stored))
    add_bytes(db, executions, of_execution(executions, key), len(proto) - content_size(payload))
    db.execute(update(executions).where(of_execution(executions, key), IS_PARKED).values(wakes_at=now_s))
    return resolved


def _place_of(token: str) -> tuple[float, str, str]:
    moment, request_id, tool_call_id = read_token(token, 3)
    try:
        moment_s = float.fromhex(moment)
    except (ValueError, OverflowError):
        raise wrong_token(token) from None
    if not math.isfinite(moment_s):
        raise wrong_token(token)
    return moment_s, request_id, tool_call_id
