"""The tool `ask_user`: its definition and its arguments. The orchestrator answers its calls by waiting for the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.grammar.arguments import ArgumentChecker, InvalidArguments
from pagantic_common.grammar.schema_validator import SchemaError, check_schema

NAME: Final = "ask_user"
MAX_QUESTION_CHARS: Final = 4000
MAX_SCHEMA_CHARS: Final = 16_384
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "question": {
            "type": "string",
            "description": "The question, complete in itself",
            "minLength": 1,
            "maxLength": MAX_QUESTION_CHARS,
        },
        "schema": {"type": "object", "description": "JSON Schema of the answer; leave it out for a free text"},
    },
    "required": ["question"],
    "additionalProperties": False,
}
DEFINITION: Final = ToolDefinition(
    name=NAME,
    description="Asks the user a question and returns the answer. Use it if only the user can know or decide.",
    parameters_json=dump_json(_SCHEMA),
    safety=ToolSafety.READ,
    idempotent=True,
)
_CHECKER = ArgumentChecker(NAME, DEFINITION.parameters_json)


@dataclass(frozen=True, slots=True)
class UserQuestion:
    """The arguments of a call to the tool. An empty `schema_json` permits any answer."""

    question: str
    schema_json: str


def read_question(arguments_json: str) -> UserQuestion:
    """Parse a call's arguments. Raises InvalidRequest (TOOL_INVALID_ARGUMENTS) if they are invalid."""
    try:
        arguments = _CHECKER.parse(arguments_json)
        schema = arguments.get("schema")
        if schema is not None:
            check_schema(schema, MAX_SCHEMA_CHARS)
    except (InvalidArguments, SchemaError) as error:
        reason = f"argument 'schema' {error}" if isinstance(error, SchemaError) else str(error)
        text = f"tool {NAME!r} was not run: {reason}"
        raise InvalidRequest(text, code=ErrorCode.TOOL_INVALID_ARGUMENTS) from None
    return UserQuestion(arguments["question"], "" if schema is None else dump_json(schema))


def answer_text(payload_json: str) -> str:
    """Return the user's answer as the model reads it: a text without its quotes, anything else as JSON."""
    try:
        answer = parse_json(payload_json, is_rewritable=True)
    except JsonTextError:
        return payload_json
    return answer if isinstance(answer, str) else payload_json
