"""Turns answers into values of a Python type, with the type's schema and the objections of its validators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pagantic.common.v1 import message_pb2, usage_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client.descriptions import guarantee_name
from pagantic_common.domain.errors import ErrorCode, PaganticError, failure_of
from pagantic_common.rpc.status import error_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails

ValueT = TypeVar("ValueT")

_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")  # keywords whose value maps names to schemas
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")  # only keywords under which closing an object is safe


@dataclass(frozen=True, slots=True)
class StructuredResult(Generic[ValueT]):
    """An answer as a value, its response, and the number of earlier answers that the type's validators refused."""

    value: ValueT
    response: execution_pb2.SystemResponse
    refusals: int = 0

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from pagantic_common.client.notebook.markup import bounded  # noqa: PLC0415 - a notebook alone asks for it
        from pagantic_common.client.notebook.responses import response_bundle  # noqa: PLC0415 - as above

        return response_bundle(self.response) | {"text/plain": bounded(repr(self.value))}

    @property
    def request_id(self) -> str:
        """The id of the request, given or generated."""
        return self.response.request_id

    @property
    def usage(self) -> usage_pb2.TokenUsage:
        """The token usage of the last attempt."""
        return self.response.token_usage

    @property
    def guarantee(self) -> str:
        """The guarantee that the answer satisfies its schema: ENFORCED, VALIDATED, REPAIRED or PARTIAL."""
        return guarantee_name(self.response.validation.guarantee)

    @property
    def warnings(self) -> list[str]:
        """Messages of problems that did not fail the request."""
        return [warning.message for warning in self.response.warnings]


class OutputType(Generic[ValueT]):
    """A Python type as an output: a pydantic model, a dataclass, `list[X]`, a union, a literal, or a TypeAdapter."""

    def __init__(self, output_type: Any) -> None:
        from pydantic import TypeAdapter  # noqa: PLC0415 - slow to import, and needed here alone

        self.name = getattr(output_type, "__name__", str(output_type))
        if not isinstance(output_type, TypeAdapter):
            output_type = TypeAdapter(output_type)
        self._adapter: TypeAdapter[ValueT] = output_type

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the type. Objects do not allow additional keys unless the type allows extras."""
        schema: dict[str, Any] = _close_objects(self._adapter.json_schema())
        return schema

    def value_of(self, response: execution_pb2.SystemResponse) -> ValueT:
        """Return the answer as a value. Raises ValidationError if a validator of the type refuses it."""
        return self._adapter.validate_json(response.structured_output_json)


def refusals_of(error: ValidationError) -> list[str]:
    """Return the objections of the validators, each with the path of the value and without the value."""
    return [_describe_refusal(problem) for problem in error.errors(include_input=False, include_url=False)]


def _describe_refusal(problem: ErrorDetails) -> str:
    path = ".".join(map(str, problem["loc"]))
    if not path:
        return problem["msg"]
    return f"{path}: {problem['msg']}"


def refused(name: str, violations: Sequence[str]) -> PaganticError:
    """Return the error for an answer that satisfies the schema of a type but not its validators."""
    message = f"the answer satisfies the schema of {name!r} but not its validators: {'; '.join(violations)}"
    return error_of(failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, message, details={"violations": list(violations)}))


def with_refusal(
    messages: Sequence[message_pb2.Message], answer: str, violations: Sequence[str]
) -> list[message_pb2.Message]:
    """Return a conversation that requests a corrected answer after the validators refused an answer."""
    lines = ["Your answer is not right:", *(f"- {violation}" for violation in violations[:20])]
    lines.append("Answer again, and give only the corrected answer.")
    return [
        *messages,
        message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=answer),
        message_pb2.Message(role=message_pb2.ROLE_USER, content="\n".join(lines)),
    ]


def _close_objects(schema: Any) -> Any:
    """Close every object schema that declares properties but does not specify whether others are allowed.

    Parts of an `allOf` stay open, because each part would otherwise refuse the keys of the other parts.
    """
    if not isinstance(schema, dict):
        return schema
    closed = {name: _close_member(name, value) for name, value in schema.items()}
    if "properties" in closed and "allOf" not in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _close_member(name: str, value: Any) -> Any:
    if name in _SCHEMAS and isinstance(value, dict):
        return {key: _close_objects(schema) for key, schema in value.items()}
    if name in _LISTS and isinstance(value, list):
        return [_close_objects(schema) for schema in value]
    if name in _SINGLE:
        return _close_objects(value)
    return value
