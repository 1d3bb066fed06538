"""Reads the error of a response."""

from __future__ import annotations

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.rpc.status import error_of


def raise_for_error(response: execution_pb2.SystemResponse) -> execution_pb2.SystemResponse:
    """Return the response, or raise its error as a PaganticError."""
    if response.HasField("error"):
        raise error_of(failure_from_proto(response.error))
    return response
