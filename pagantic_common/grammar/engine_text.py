"""Schemas, GBNF and regular expressions -> the text that the decoding engine (llguidance) takes.

Between the tokens of a schema's JSON only `": "` and `", "` are allowed: small models left free emit white space
without end, and fixed separators are forced tokens, which cost no decoding.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer

from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.json_schema import schema_for_engine
from pagantic_common.grammar.lark import to_lark
from pagantic_common.grammar.problems import GrammarError, GrammarTooComplexError, Problem

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # exists in the stub only

__all__ = [
    "STACK_BYTES",
    "GrammarError",
    "GrammarTooComplexError",
    "byte_tokenizer",
    "check_engine_text",
    "engine_text_of_gbnf",
    "engine_text_of_regex",
    "engine_text_of_schema",
    "engine_text_of_values",
]

ITEM_SEPARATOR = ", "
KEY_SEPARATOR = ": "
MAX_REASON_CHARS = 400
STACK_BYTES = 256 * 1024 * 1024  # for threads that compile: the engine recurses along chains of thousands of rules
_NOTHING = "NoExtensionBias"  # the engine's word for a grammar without a first character
_QUOTED = re.compile(r'"[^"]*"|`[^`]*`|\'[^\']*\'')
_LIMIT = re.compile(r"schema too large|[Tt]oo many|exceeds|limit of|fuel exhausted|panic:")  # in the engine's own words


def engine_text_of_schema(schema_json: str, *, lenient: bool = False) -> str:
    """Compile a JSON Schema; lenient leaves out keywords that the engine does not know instead of refusing them.

    Raises GrammarError when the text is not a JSON object or boolean; call check_engine_text for the rest.
    """
    try:
        schema = json.loads(schema_json)
    except (ValueError, RecursionError):
        raise GrammarError(Problem("the schema is not JSON")) from None
    if isinstance(schema, bool):
        schema = {} if schema else {"allOf": [False]}
    if not isinstance(schema, dict):
        raise GrammarError(Problem("the schema is neither an object nor a boolean"))
    options: JsonCompileOptions = {
        "whitespace_flexible": False,
        "item_separator": ITEM_SEPARATOR,
        "key_separator": KEY_SEPARATOR,
        "lenient": lenient,
    }
    schema.pop("x-guidance", None)
    text: str = LLMatcher.grammar_from_json_schema(json.dumps(schema_for_engine(schema)), overrides=options)
    return text


def engine_text_of_gbnf(text: str) -> str:
    """Compile GBNF; raises GrammarError with line and column."""
    return _of_lark(to_lark(parse_gbnf(text)))


def engine_text_of_regex(pattern: str) -> str:
    """Compile a regular expression that the whole output matches; check_engine_text says whether it is one."""
    text: str = LLMatcher.grammar_from_regex(pattern)
    return text


def engine_text_of_values(values: list[str]) -> str:
    """Compile a closed list of outputs."""
    if not values:
        raise GrammarError(Problem("the list of values is empty"))
    return _of_lark("start: " + " | ".join(json.dumps(value) for value in values) + "\n")


def check_engine_text(text: str) -> list[str]:
    """Have the engine build the text and look for a first character; returns its warnings.

    Raises GrammarError with its reason, GrammarTooComplexError when that is one of its limits.
    """
    is_error, messages = LLMatcher.validate_grammar_with_warnings(text, byte_tokenizer())
    if is_error:
        raise _refusal("; ".join(messages).strip())
    matcher = LLMatcher(byte_tokenizer(), text, log_level=0)
    matcher.compute_bitmask()
    if matcher.is_error():
        reason = matcher.get_error().split("<state>", 1)[0].strip()
        raise _refusal("it derives nothing" if reason.startswith(_NOTHING) else reason)
    return list(messages)


def _refusal(reason: str) -> GrammarError:
    reason = reason.split("<backtrace>", 1)[0].strip()
    # What it quotes of the source stands in quotes, on later lines, or behind "regex parse error".
    said = _QUOTED.sub("", reason.split("\n", 1)[0])
    is_limit = _LIMIT.search(said) and not said.startswith("regex parse error")
    kind = GrammarTooComplexError if is_limit else GrammarError
    return kind(Problem(reason[:MAX_REASON_CHARS] or "the engine refuses it"))


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """Return a tokenizer whose tokens are bytes: for checking text where there is no model."""
    return LLTokenizer("byte")


def _of_lark(lark: str) -> str:
    text: str = LLMatcher.grammar_from_lark(lark)
    return text
