"""Finds the quotes of an output that are not in their sources. Knows nothing of how the output was decoded."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode
from pagantic_common.domain.text.citations import CitationPolicy, find_problems
from pagantic_common.domain.text.json_text import parse_json
from pagantic_common.domain.validation import Violation


def find_misquotes(output: str, policy: CitationPolicy, sources: Sequence[str]) -> list[Violation]:
    """Return a violation for each claim that its source does not bear out.

    The output satisfies the schema of citations.
    """
    return [
        Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, f'field "{path}": {problem}', path)
        for path, problem in find_problems(parse_json(output), sources, policy)
    ]
