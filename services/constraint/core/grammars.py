"""Finds the problems of grammars, and decides whether a grammar derives a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLMatcher

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.engine_text import byte_tokenizer
from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.problems import GrammarError, Problem
from services.constraint.core.compilation import Source, SourceKind, compile_source
from services.constraint.core.model import Limits

MAX_PROBLEMS = 100  # maximum number of problems listed per grammar
_CHUNK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class GrammarReport:
    """The problems of a grammar. `text_matches` is None if there is no text or the grammar is invalid."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    text_matches: bool | None = None


def check_grammar(grammar: str, text: str | None, limits: Limits) -> GrammarReport:
    """Parse and compile a grammar, and match the text, if any, against it.

    Raises InvalidRequest (CONSTRAINT_TOO_COMPLEX).
    """
    try:
        warnings = _listed(parse_gbnf(grammar).warnings)
    except GrammarError as error:
        return GrammarReport(problems=error.problems)
    try:
        compiled = compile_source(Source(SourceKind.GRAMMAR, grammar), limits)
    except InvalidRequest as error:
        if error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX:
            raise
        return GrammarReport(problems=(Problem(str(error)),), warnings=warnings)
    if text is None:
        return GrammarReport(warnings=warnings)
    return GrammarReport(warnings=warnings, text_matches=derives(compiled.engine_text, text))


def _listed(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the first MAX_PROBLEMS problems, followed by a count of the omitted problems, if any."""
    others = len(problems) - MAX_PROBLEMS
    if others <= 0:
        return tuple(problems)
    return (*problems[:MAX_PROBLEMS], Problem(f"{others} more are not listed"))


def derives(engine_text: str, text: str) -> bool:
    """Return whether the grammar derives the whole text.

    An ambiguous grammar may take time cubic in the length of the text. Raises InvalidRequest
    (CONSTRAINT_TOO_COMPLEX) if the engine exceeds its limits.
    """
    matcher = LLMatcher(byte_tokenizer(), engine_text, log_level=0)
    data = text.encode()
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = list(data[start : start + _CHUNK_BYTES])
        if matcher.try_consume_tokens(chunk) == len(chunk):
            continue
        if not matcher.is_error():
            return False
        reason = matcher.get_error().split(";", 1)[0][:200]
        raise InvalidRequest(
            f"matching the text with the grammar is too costly: {reason}; a less ambiguous grammar helps",
            code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
        )
    return bool(matcher.is_accepting())
