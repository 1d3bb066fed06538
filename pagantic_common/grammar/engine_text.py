"""Translates schemas, GBNF and regular expressions into the text that the decoding engine (llguidance) reads.

A schema's JSON has `": "` and `", "` as its only separators. With free white space, small models would emit it
endlessly. Fixed separators are forced tokens, which need no decoding.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.json_schema import find_costly_multiple, find_rounded_value, schema_for_engine
from pagantic_common.grammar.lark import to_lark
from pagantic_common.grammar.problems import GrammarError, GrammarTooComplexError, Problem

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # This type exists only in the stub.

__all__ = [
    "STACK_BYTES",
    "GrammarError",
    "GrammarTooComplexError",
    "beginning_line",
    "byte_tokenizer",
    "check_engine_text",
    "engine_text_of_gbnf",
    "engine_text_of_regex",
    "engine_text_of_schema",
    "engine_text_of_values",
    "find_beginnings",
    "has_pattern",
    "start_matcher",
    "start_ready_matcher",
]

ITEM_SEPARATOR = ", "
KEY_SEPARATOR = ": "
MAX_REASON_CHARS = 400
MAX_ENGINE_TEXT_BYTES = 256 * 1024  # The decoder rejects larger constraints.
MAX_BEGINNINGS = 64
MAX_BEGINNING_CHARS = 1000  # counted in the prefix's JSON text
STACK_BYTES = 256 * 1024 * 1024  # The engine recurses along chains of thousands of rules when it compiles.
# These limits bound the cost of a mask and the size of its lexer. A decode step waits at most tens of milliseconds.
# The engine's limits are several times higher, but the JSON Schema Test Suite gives the same results under both.
# The engine does not limit the building of a lexer, so its callers must.
LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    verbose_errors=False,  # Verbose errors would quote the output.
)
# A text of bounded length needs about four states of 700 bytes for each character, so this limit allows 24,000
# characters. A state of a pattern may be several times as large.
LIMITS_WITHOUT_PATTERN = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
_PATTERN = re.compile(r'^[^{]|"lark_grammar"\s*:\s*"|"pattern(Properties)?"\s*:|\\u')  # An escape may hide a keyword.
_NOTHING = "NoExtensionBias"  # the engine's term for a grammar without a first character
_QUOTED = re.compile(r'"[^"]*"|`[^`]*`|\'[^\']*\'')
_LIMIT = re.compile(  # the engine's wording
    r"schema too large|too big|[Tt]oo many|exceeds|limit of|recursion limit|initial_lexer_fuel|fuel exhausted|panic:"
)


def engine_text_of_schema(schema_json: str, *, lenient: bool = False) -> str:
    """Compile a JSON Schema.

    `lenient` drops keywords that the engine does not know and numbers that it cannot enforce, instead of rejecting
    them. Raises GrammarError if the text is not a JSON object or boolean, or cannot be enforced. Raises
    GrammarTooComplexError if it is nested too deeply. `check_engine_text` finds other problems.
    """
    schema = _read_schema(schema_json)
    options: JsonCompileOptions = {
        "whitespace_flexible": False,
        "item_separator": ITEM_SEPARATOR,
        "key_separator": KEY_SEPARATOR,
        "lenient": lenient,
    }
    schema.pop("x-guidance", None)
    try:
        rewritten = schema_for_engine(schema, keeps_numbers=not lenient)
    except RecursionError:
        raise GrammarTooComplexError(Problem("the schema is nested too deeply")) from None
    rounded = find_rounded_value(rewritten)
    if rounded is not None:
        raise GrammarError(Problem(f"the value {rounded} cannot be enforced: integers are exact up to 2^53"))
    costly = find_costly_multiple(rewritten)
    if costly is not None:
        raise GrammarTooComplexError(Problem(f"the decoder cannot count multiples of {costly}"))
    try:
        text: str = LLMatcher.grammar_from_json_schema(json.dumps(rewritten), overrides=options)
    except ValueError as error:
        raise _refusal(str(error)) from None
    return text


def engine_text_of_gbnf(text: str) -> str:
    """Compile GBNF. Raises GrammarError, with line and column, for invalid text."""
    return _of_lark(to_lark(parse_gbnf(text)))


def engine_text_of_regex(pattern: str) -> str:
    """Compile a regular expression for the whole output. `check_engine_text` checks whether it is valid."""
    text: str = LLMatcher.grammar_from_regex(pattern)
    return text


def engine_text_of_values(values: list[str]) -> str:
    """Compile a list of allowed outputs. Raises GrammarError if the list is empty."""
    if not values:
        raise GrammarError(Problem("the list of values is empty"))
    return _of_lark("start: " + " | ".join(json.dumps(value) for value in values) + "\n")


_BEGINNING = "// begins "
_BEGINNING_LINE = re.compile(f'^{_BEGINNING}(".{{0,{MAX_BEGINNING_CHARS - 2}}}")$', re.MULTILINE)


def check_engine_text(text: str) -> list[str]:
    """Let the engine build the text and compute the first mask, and return the engine's warnings.

    Raises GrammarError with the engine's reason, or GrammarTooComplexError if the text exceeds a limit of the engine.
    """
    is_error, messages = LLMatcher.validate_grammar_with_warnings(text, byte_tokenizer(), limits=LIMITS)
    if is_error:
        raise _refusal("; ".join(messages).strip())
    start_matcher(text, byte_tokenizer())
    return list(messages)


def start_matcher(text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher that can compute its first mask. Raises GrammarError and GrammarTooComplexError.

    Some grammars take minutes and gigabytes. Call this function only in a process with limits, or with text that was
    already built in such a process.
    """
    limits = LIMITS_WITHOUT_PATTERN
    if has_pattern(text):
        limits = LIMITS
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        reason = matcher.get_error().split("<state>", 1)[0].strip()
        if reason.startswith(_NOTHING):
            raise _refusal("it derives nothing")
        raise _refusal(reason)
    return matcher


def beginning_line(text: str) -> str:
    """Return a line for a Lark grammar that names an output prefix with a costly next mask."""
    return f"{_BEGINNING}{json.dumps(text)}"


def find_beginnings(text: str) -> list[str]:
    """Return the prefixes that an engine's text names, at most MAX_BEGINNINGS.

    The text may come from a caller. A line is ignored if it is not a JSON string or is longer than MAX_BEGINNING_CHARS.
    """
    beginnings: list[str] = []
    for line in _BEGINNING_LINE.findall(text)[:MAX_BEGINNINGS]:
        with suppress(JsonTextError):
            beginnings.append(parse_json(line, is_rewritable=True))  # Lone surrogates are rejected.
    return beginnings


def start_ready_matcher(text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher as `start_matcher` does, after computing the costly masks that the text names."""
    matcher = start_matcher(text, tokenizer)
    for beginning in find_beginnings(text):
        ahead = matcher.deep_copy()  # The copy shares the lexer.
        for token in tokenizer.tokenize_str(beginning):
            if not ahead.consume_token(token):
                break
        ahead.compute_bitmask()
    return matcher


def has_pattern(text: str) -> bool:
    """Return whether an engine's text may contain patterns other than schema keywords."""
    return _PATTERN.search(text) is not None


def _read_schema(schema_json: str) -> dict[str, Any]:
    try:
        schema = parse_json(schema_json, is_rewritable=True)
    except JsonTextError as error:
        raise GrammarError(Problem(f"the schema is not JSON: {error}")) from None
    if schema is True:
        return {}
    if schema is False:
        return {"allOf": [False]}
    if not isinstance(schema, dict):
        raise GrammarError(Problem("the schema is neither an object nor a boolean"))
    return schema


def _refusal(reason: str) -> GrammarError:
    reason = reason.split("<backtrace>", 1)[0].strip()
    problem = Problem(reason[:MAX_REASON_CHARS] or "the engine refuses it")
    # The engine quotes the source in quotes, on later lines, or after "regex parse error". Only its own text counts.
    own_words = _QUOTED.sub("", reason.split("\n", 1)[0])
    if _LIMIT.search(own_words) and not own_words.startswith("regex parse error"):
        return GrammarTooComplexError(problem)
    return GrammarError(problem)


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """Return a tokenizer whose tokens are bytes, to check text without a model."""
    return LLTokenizer("byte")


def _of_lark(lark: str) -> str:
    text: str = LLMatcher.grammar_from_lark(lark)
    return text
