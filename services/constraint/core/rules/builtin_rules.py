"""The built-in kinds of rules."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import re2

from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.text.normalization import normalize_nfkc
from pagantic_common.domain.text.words import is_without_spaces
from pagantic_common.grammar.expressions import first_line
from services.constraint.core.repair.json_repair import is_json
from services.constraint.core.rules.check import Check, RuleError

MAX_WORDS = 1000
MAX_REGEX_BYTES = 1 << 20
_MAX_SHOWN_CHARS = 200


def compile_builtin(kind: str, parameters_json: str) -> Check:
    """Compile a built-in rule. Raises RuleError if the kind is unknown or the parameters are invalid."""
    builtin = _BUILTINS.get(kind)
    if builtin is None:
        raise RuleError(f"no built-in rule is named {kind!r}; there are {', '.join(_BUILTINS)}")
    parameters = _parse_parameters(parameters_json)
    if not builtin.parameter:
        if parameters:
            raise RuleError(f"{kind} takes no parameters, not {sorted(parameters)}")
        return partial(builtin.check, None)
    if set(parameters) != {builtin.parameter}:
        raise RuleError(f"{kind} takes exactly the parameter {builtin.parameter!r}, not {sorted(parameters)}")
    return partial(builtin.check, builtin.read(builtin.parameter, parameters[builtin.parameter]))


def _parse_parameters(parameters_json: str) -> dict[str, Any]:
    try:
        parameters = parse_json(parameters_json or "{}")
    except JsonTextError as error:
        raise RuleError(f"its parameters are not JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise RuleError("its parameters are not a JSON object")
    return parameters


def _read_length(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RuleError(f"{name!r} must be a whole number")
    if value < 0:
        raise RuleError(f"{name!r} must not be negative")
    return value


def _read_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RuleError(f"{name!r} must be a text")
    return value


def _read_words(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise RuleError(f"{name!r} must be a list")
    if not all(isinstance(word, str) and word.strip() for word in value):
        raise RuleError(f"{name!r} must hold words, none of them blank")
    if len(value) > MAX_WORDS:
        raise RuleError(f"{name!r} has {len(value)} words, at most {MAX_WORDS} are taken")
    return value


def _read_pattern(name: str, value: Any) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_REGEX_BYTES
    try:
        return re2.compile(_read_text(name, value), options)
    except (re2.error, UnicodeEncodeError) as error:
        raise RuleError(f"the pattern is not a regular expression of RE2: {first_line(error)}") from None


def _check_not_empty(_: None, output: str) -> str:
    if output.strip():
        return ""
    return "the output is empty"


def _check_max_length(limit: int, output: str) -> str:
    if len(output) <= limit:
        return ""
    return f"has {len(output)} characters, at most {limit} are allowed"


def _check_min_length(limit: int, output: str) -> str:
    if len(output) >= limit:
        return ""
    return f"has {len(output)} characters, at least {limit} are needed"


def _check_json(_: None, output: str) -> str:
    if is_json(output):
        return ""
    return "the output is not JSON"


def _check_pattern(pattern: Any, output: str) -> str:
    if pattern.search(output):
        return ""
    return f"does not match {pattern.pattern[:_MAX_SHOWN_CHARS]!r}"


def _check_contains(text: str, output: str) -> str:
    if text in output:
        return ""
    return f"does not contain {text[:_MAX_SHOWN_CHARS]!r}"


def _check_excludes(text: str, output: str) -> str:
    if text not in output:
        return ""
    return f"contains {text[:_MAX_SHOWN_CHARS]!r}"


def _check_excludes_words(words: list[str], output: str) -> str:
    matches = find_words(words, output)
    if not matches:
        return ""
    return f"contains the word {matches[0][:_MAX_SHOWN_CHARS]!r}"


@dataclass(frozen=True, slots=True)
class _Builtin:
    """A built-in kind of rule with its check.

    The check takes the value of its only parameter, or None if the kind has no parameter, and the output. `read`
    converts the parameter's value for the check, and raises RuleError if the value is invalid.
    """

    check: Callable[[Any, str], str]
    parameter: str = ""
    read: Callable[[str, Any], Any] = _read_text


_BUILTINS = {
    "not_empty": _Builtin(_check_not_empty),
    "max_length": _Builtin(_check_max_length, "length", _read_length),
    "min_length": _Builtin(_check_min_length, "length", _read_length),
    "valid_json": _Builtin(_check_json),
    "regex": _Builtin(_check_pattern, "pattern", _read_pattern),
    "contains": _Builtin(_check_contains, "text"),
    "excludes": _Builtin(_check_excludes, "text"),
    "excludes_words": _Builtin(_check_excludes_words, "words", _read_words),
}


def fold(text: str) -> str:
    """Normalize a text for comparison. Compatibility forms and letter case no longer differ."""
    folded = normalize_nfkc(normalize_nfkc(text).casefold())
    return "".join(char for char in folded if unicodedata.category(char) != "Cf")  # soft hyphens, zero-width spaces


def find_words(words: Sequence[str], text: str) -> list[str]:
    """Return the words that occur in the text, in the order of `words`.

    Only whole words count. A word next to a letter, digit or mark is part of a longer word.
    """
    folded = fold(text)
    return [word for word in words if _occurs_in(fold(word), folded)]


def _occurs_in(word: str, text: str) -> bool:
    if not word:
        return False
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if _is_border(text[start - 1 : start], word[0]) and _is_border(text[end : end + 1], word[-1]):
            return True
        start = text.find(word, start + 1)
    return False


def _is_border(outside: str, inside: str) -> bool:
    """Return whether a word ends between its character `inside` and the adjacent character `outside`.

    `outside` is empty at either end of the text. A word that ends in a letter of a script without spaces may occur
    anywhere.
    """
    if not outside:
        return True
    if unicodedata.category(outside).startswith("M"):
        return False
    if not outside.isalnum() or not inside.isalnum():
        return True
    return is_without_spaces(inside)
