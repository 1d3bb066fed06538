"""Retry policies <-> proto."""

from __future__ import annotations

from pagantic.orchestrator.v1 import plan_pb2
from pagantic_common.codec.messages import duration_from_proto, duration_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.model.retry import DEFAULT_MAX_RETRIES, RetryPolicy

_KINDS = frozenset(plan_pb2.BackoffKind.values())


def retry_from_proto(retry: plan_pb2.RetryPolicy) -> RetryPolicy:
    """Decode a policy; raises InvalidRequest for an unknown kind of backoff."""
    if retry.kind not in _KINDS:
        raise InvalidRequest(f"retry.kind {retry.kind} is not known")
    max_retries = DEFAULT_MAX_RETRIES
    if retry.HasField("max_retries"):
        max_retries = retry.max_retries
    return RetryPolicy(
        max_retries=max_retries,
        backoff_s=duration_from_proto(retry.backoff),
        is_exponential=retry.kind == plan_pb2.BACKOFF_KIND_EXPONENTIAL,
    )


def retry_to_proto(retry: RetryPolicy) -> plan_pb2.RetryPolicy:
    """Encode a policy."""
    kind = plan_pb2.BACKOFF_KIND_FIXED
    if retry.is_exponential:
        kind = plan_pb2.BACKOFF_KIND_EXPONENTIAL
    return plan_pb2.RetryPolicy(max_retries=retry.max_retries, backoff=duration_to_proto(retry.backoff_s), kind=kind)
