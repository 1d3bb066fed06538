"""Filters documents by a CEL expression over `metadata`, their JSON object with numbers as doubles, and `source`."""

from __future__ import annotations

from functools import lru_cache

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import parse_json
from pagantic_common.grammar.expressions import Expression, ExpressionError, as_doubles

VARIABLES = frozenset({"metadata", "source"})


@lru_cache(maxsize=256)
def compile_filter(field: str, text: str) -> Expression:
    """Compile; raises InvalidRequest, naming the field, for text that is no such expression."""
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
    """Tell whether the expression is true for a document; one without the fields that it reads is not selected."""
    variables: dict[str, object] = {"source": source}
    if "metadata" in expression.names:
        variables["metadata"] = as_doubles(parse_json(metadata_json or "{}"))
    try:
        return expression.evaluate(variables) is True
    except ExpressionError:
        return False
