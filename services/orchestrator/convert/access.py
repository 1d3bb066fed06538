"""Converts API keys, budgets and audit records to and from proto."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.orchestrator.v1 import audit_pb2, budget_pb2, key_pb2
from pagantic_common.codec.fields import EnumCodec, encode_optional
from pagantic_common.codec.messages import timestamp_to_proto
from pagantic_common.domain.calls.api_keys import StoredKey
from pagantic_common.domain.calls.audit import AuditRecord, Decision
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.admission.budget import MICRO, Budget, Period

_SCOPES = EnumCodec(key_pb2.KeyScope, Scope, "KEY_SCOPE_", unknown=None)
_PERIODS = EnumCodec(budget_pb2.BudgetPeriod, Period, "BUDGET_PERIOD_", unknown=None)
_DECISIONS = EnumCodec(audit_pb2.AuditDecision, Decision, "AUDIT_DECISION_", unknown=None)
MAX_TIME_US = 253_402_300_799_999_999  # the latest time that a Timestamp can represent
_MEMBERS = {member.value: member for member in Decision}


def scopes_from_proto(numbers: list[int]) -> frozenset[Scope]:
    """Decode scopes. Raises InvalidRequest if a scope is unknown."""
    scopes = [_SCOPES.from_proto(number) for number in numbers]
    if None in scopes:
        raise InvalidRequest("scopes has one that is unspecified or not known")
    return frozenset(scope for scope in scopes if scope is not None)


def key_to_proto(key: StoredKey) -> key_pb2.Key:
    """Encode a key without its secret."""
    return key_pb2.Key(
        key_id=key.key_id,
        tenant=key.tenant,
        subject=key.subject,
        scopes=sorted(_SCOPES.to_proto(scope) for scope in key.scopes),
        created_at=_moment(key.created_at),
        expires_at=encode_optional(key.expires_at, _moment),
        revoked_at=encode_optional(key.revoked_at, _moment),
    )


def audit_record_to_proto(record: AuditRecord) -> audit_pb2.AuditRecord:
    """Encode an audit record."""
    entry = record.entry
    encoded = audit_pb2.AuditRecord(
        orchestrator=record.owner,
        position=record.position,
        tenant=entry.tenant,
        subject=entry.subject,
        kind=entry.kind,
        key_id=entry.key_id,
        method=entry.method,
        resource=entry.resource,
        request_id=entry.request_id,
        decision=_DECISIONS.to_proto(_MEMBERS.get(entry.decision)),
        code=entry.code,
        previous=record.previous,
        digest=record.digest,
    )
    encoded.at.FromMicroseconds(min(max(entry.at_us, 0), MAX_TIME_US))  # A tampered record fails its digest check.
    return encoded


def _moment(seconds: float) -> Timestamp:
    return timestamp_to_proto(datetime.fromtimestamp(seconds, UTC))


def period_from_proto(number: int) -> Period:
    """Decode a period. Raises InvalidRequest if the period is unknown."""
    period = _PERIODS.from_proto(number)
    if period is None:
        raise InvalidRequest("period is unspecified or not known")
    return period


def budget_to_proto(budget: Budget) -> budget_pb2.Budget:
    """Encode a budget."""
    encoded = budget_pb2.Budget(
        tenant=budget.account.tenant,
        subject=budget.account.subject,
        period=_PERIODS.to_proto(budget.period),
        granted_tokens=budget.granted.tokens,
        granted_cost_usd=budget.granted.micro_usd / MICRO,
        period_start=timestamp_to_proto(datetime.fromtimestamp(budget.period_start, UTC)),
    )
    if budget.max_tokens is not None:
        encoded.max_tokens = budget.max_tokens
    if budget.max_micro_usd is not None:
        encoded.max_cost_usd = budget.max_micro_usd / MICRO
    return encoded
