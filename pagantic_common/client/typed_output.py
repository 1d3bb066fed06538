"""Answers as values of a Python type: its schema, sent closed, and what validation says of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from pagantic.common.v1 import message_pb2, usage_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import ErrorCode, PaganticError, failure_of
from pagantic_common.rpc.status import error_of

ValueT = TypeVar("ValueT")

_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")  # keywords that hold schemas by name
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")  # not those under which a closed object means something else


@dataclass(frozen=True, slots=True)
class StructuredResult(Generic[ValueT]):
    """An answer as a value, the response that brought it, and how often the type's validators sent it back."""

    value: ValueT
    response: execution_pb2.SystemResponse
    refusals: int = 0

    @property
    def request_id(self) -> str:
        """The request's id, given or made."""
        return self.response.request_id

    @property
    def usage(self) -> usage_pb2.TokenUsage:
        """What the last attempt cost."""
        return self.response.token_usage

    @property
    def guarantee(self) -> str:
        """How the answer came to satisfy its schema: ENFORCED, VALIDATED, REPAIRED or PARTIAL."""
        return contract_pb2.Guarantee.Name(self.response.validation.guarantee).removeprefix("GUARANTEE_")

    @property
    def warnings(self) -> list[str]:
        """What went wrong without failing the request."""
        return [warning.message for warning in self.response.warnings]


class OutputType(Generic[ValueT]):
    """A Python type as an output: a pydantic model, a dataclass, `list[X]`, a union, a literal, or a TypeAdapter."""

    def __init__(self, output_type: Any) -> None:
        self._adapter: TypeAdapter[ValueT]
        self._adapter = output_type if isinstance(output_type, TypeAdapter) else TypeAdapter(output_type)
        self.name = getattr(output_type, "__name__", str(output_type))

    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema, whose objects take no further keys unless the type allows extras."""
        closed: dict[str, Any] = _closed(self._adapter.json_schema())
        return closed

    def value_of(self, response: execution_pb2.SystemResponse) -> ValueT:
        """Return the answer as a value; raises ValidationError where a validator of the type refuses it."""
        return self._adapter.validate_json(response.structured_output_json)


def refusals_of(error: ValidationError) -> list[str]:
    """Return what the validators said, each with the path of its value, without the values."""
    problems = error.errors(include_input=False, include_url=False)
    return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"] for one in problems]


def refused(name: str, violations: Sequence[str]) -> PaganticError:
    """Return the error of an answer that satisfies the schema of a type, but not its validators."""
    message = f"the answer satisfies the schema of {name!r} but not its validators: {'; '.join(violations)}"
    return error_of(failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, message, details={"violations": list(violations)}))


def with_refusal(
    messages: Sequence[message_pb2.Message], answer: str, violations: Sequence[str]
) -> list[message_pb2.Message]:
    """Return the conversation that asks again for an answer that validators refused."""
    lines = ["Your answer is not right:", *(f"- {violation}" for violation in violations[:20])]
    lines.append("Answer again, and give only the corrected answer.")
    return [
        *messages,
        message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=answer),
        message_pb2.Message(role=message_pb2.ROLE_USER, content="\n".join(lines)),
    ]


def _closed(schema: Any) -> Any:
    """Close every object that names its properties and says nothing of others.

    Parts of an `allOf` stay open, for each would refuse the others' keys.
    """
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in _SCHEMAS:
        if isinstance(closed.get(name), dict):
            closed[name] = {key: _closed(value) for key, value in closed[name].items()}
    for name in _LISTS:
        if isinstance(closed.get(name), list):
            closed[name] = [_closed(value) for value in closed[name]]
    for name in _SINGLE:
        if name in closed:
            closed[name] = _closed(closed[name])
    if "properties" in closed and "allOf" not in closed:
        closed.setdefault("additionalProperties", False)
    return closed
