"""The JSON Schema in a constraint, which is all that OpenAI's API can hold an output to."""

from __future__ import annotations

from typing import Any

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.inference.core.generation import Constraint, ConstraintKind

# The constraint service writes options of our own engine under this key of a schema.
_ENGINE_OPTIONS = "x-guidance"


def schema_of(constraint: Constraint, model: str) -> dict[str, Any]:
    """Return the schema of a constraint; raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID) for one of another kind."""
    schema: Any = None
    if constraint.kind is ConstraintKind.SCHEMA:
        schema = _parsed(constraint.text, model)
    elif constraint.kind is ConstraintKind.ENGINE_TEXT and constraint.text.startswith("{"):
        schema = _schema_of_engine_text(_parsed(constraint.text, model))
    if not isinstance(schema, dict):
        raise refuse_constraint(model, "takes JSON Schemas of objects only, no grammars, patterns or lists of values")
    return schema


def refuse_constraint(model: str, reason: str) -> InvalidRequest:
    """Return the refusal of a constraint by the engine of a model."""
    return InvalidRequest(
        f"the engine of model {model!r} {reason}, or use a model that this service decodes itself",
        code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID,
    )


def _parsed(text: str, model: str) -> Any:
    try:
        return parse_json(text, is_rewritable=True)
    except JsonTextError as error:
        raise refuse_constraint(model, f"takes JSON Schemas, and this one is not JSON ({error})") from None


def _schema_of_engine_text(parsed: Any) -> Any:
    """Return the schema of an engine's text that consists of one; None for any other."""
    grammars = parsed.get("grammars")
    if not isinstance(grammars, list) or len(grammars) != 1 or not isinstance(grammars[0], dict):
        return None
    schema = grammars[0].get("json_schema")
    if grammars[0].get("lark_grammar") or not isinstance(schema, dict):
        return None
    return {name: value for name, value in schema.items() if name != _ENGINE_OPTIONS}
