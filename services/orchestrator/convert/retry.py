"""Retry policies <-> proto."""

from __future__ import annotations

from pagantic.orchestrator.v1 import plan_pb2
from pagantic_common.codec.messages import duration_from_proto, duration_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.model.retry import DEFAULT_MAX_RETRIES, RetryPolicy


def retry_from_proto(retry: plan_pb2.RetryPolicy) -> RetryPolicy:
    """Decode a policy; raises InvalidRequest for a kind of backoff that is not known."""
    if retry.kind not in plan_pb2.BackoffKind.values():
        raise InvalidRequest(f"retry.kind {retry.kind} is not known")
    return RetryPolicy(
        max_retries=retry.max_retries if retry.HasField("max_retries") else DEFAULT_MAX_RETRIES,
        backoff_s=duration_from_proto(retry.backoff),
        is_exponential=retry.kind == plan_pb2.BACKOFF_KIND_EXPONENTIAL,
    )


def retry_to_proto(retry: RetryPolicy) -> plan_pb2.RetryPolicy:
    """Encode a policy."""
    kind = plan_pb2.BACKOFF_KIND_EXPONENTIAL if retry.is_exponential else plan_pb2.BACKOFF_KIND_FIXED
    return plan_pb2.RetryPolicy(max_retries=retry.max_retries, backoff=duration_to_proto(retry.backoff_s), kind=kind)
