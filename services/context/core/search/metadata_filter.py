"""Filters documents by a CEL expression over `source` and `metadata`, a JSON object with numbers as doubles."""

from __future__ import annotations

from functools import lru_cache

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import parse_json
from pagantic_common.grammar.expressions import Expression, ExpressionError, as_doubles, kind_of

VARIABLES = frozenset({"metadata", "source"})
_MAX_SHOWN_CHARS = 200


@lru_cache(maxsize=256)
def compile_filter(field: str, text: str) -> Expression:
    """Compile a filter. Raises an InvalidRequest that names the field if the text is not a valid filter."""
    try:
        expression = Expression(text)
    except ExpressionError as error:
        raise InvalidRequest(f"{field}: {error}") from None
    if unknown := sorted(expression.names - VARIABLES):
        raise InvalidRequest(
            f"{field}: the expression reads {unknown[0]!r}: there is only 'metadata' (JSON object) and 'source' (text)"
        )
    return expression


def is_selected(expression: Expression, source: str, metadata_json: str) -> bool:
    """Return whether the expression is true for a document, or False if the document lacks a field of the expression.

    Raises InvalidRequest if the expression is not a condition.
    """
    variables: dict[str, object] = {"source": source}
    if "metadata" in expression.names:
        variables["metadata"] = as_doubles(parse_json(metadata_json or "{}"))
    try:
        result = expression.evaluate(variables)
    except ExpressionError:
        return False
    if not isinstance(result, bool):
        raise InvalidRequest(
            f"policy.filter {expression.text[:_MAX_SHOWN_CHARS]!r} gives {kind_of(result)} for document {source!r}: it "
            "must be a condition, true or false, such as 'metadata.year >= 2020'"
        )
    return result
