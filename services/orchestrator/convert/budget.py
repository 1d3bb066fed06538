"""Budgets <-> proto."""

from __future__ import annotations

from datetime import UTC, datetime

from pagantic.orchestrator.v1 import budget_pb2
from pagantic_common.codec.enums import EnumCodec
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.convert.lifecycle import timestamp_to_proto
from services.orchestrator.core.budget import MICRO, Budget, Period

_PERIODS = EnumCodec(budget_pb2.BudgetPeriod, Period, "BUDGET_PERIOD_", unknown=None)


def period_from_proto(number: int) -> Period:
    """Decode a period; raises InvalidRequest for one that is not known."""
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
