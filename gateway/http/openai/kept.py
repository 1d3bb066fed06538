"""Stored objects of this API: executions whose metadata names the kind of object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway.http.openai.forms import Notes
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound
from pagantic_common.domain.ids import is_id

KIND_KEY, ECHO_KEY = "openai.object", "openai.request"
EchoT = TypeVar("EchoT", bound=BaseModel)
_NOTES: TypeAdapter[dict[str, str]] = TypeAdapter(Notes)


def keep(sent: execution_pb2.SystemRequest, kind: str, echo: Mapping[str, Any]) -> None:
    """Mark a request to be kept as an object of this kind.

    `echo` holds the parts of the client's request that the object repeats.
    """
    sent.keep_request = True
    sent.metadata[KIND_KEY] = kind
    sent.metadata.update(echo_metadata(echo))


def echo_metadata(echo: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that stores the repeated parts of an object."""
    return {ECHO_KEY: json.dumps(echo, ensure_ascii=False)}


def echo_of(execution: execution_pb2.Execution, kind: type[EchoT]) -> EchoT:
    """Return the repeated parts of the object that an execution represents.

    Raises NotFound if the metadata has another form, because any client may write metadata.
    """
    try:
        return kind.model_validate_json(execution.metadata.get(ECHO_KEY, ""))
    except ValidationError:
        raise NotFound(
            f"execution {execution.request_id[:128]!r} is no stored object: another client wrote its metadata "
            f"{ECHO_KEY!r}"
        ) from None


def notes_of(text: str) -> dict[str, str]:
    """Parse the JSON of an object's metadata, which any client may write. Return an empty result for any other JSON."""
    try:
        return _NOTES.validate_json(text)
    except ValidationError:
        return {}


async def find(client: AsyncClient, object_id: str, prefix: str, kind: str) -> execution_pb2.Execution:
    """Return the execution of an object, given the object's or the request's id. Raises NotFound for an unknown id."""
    request_id = object_id.removeprefix(prefix)
    unknown = NotFound(
        f"there is no {kind} {object_id[:128]!r}: it was not stored, was deleted, or is older than the orchestrator "
        "keeps executions (RETENTION_S)"
    )
    if not is_id(request_id):
        raise unknown
    try:
        execution = await client.get_execution(request_id)
    except NotFound:
        raise unknown from None
    if execution.metadata.get(KIND_KEY) != kind:
        raise unknown
    return execution
