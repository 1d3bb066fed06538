"""The form of a compiled rule, and the error of a rule that does not compile."""

from __future__ import annotations

from collections.abc import Callable

_MAX_REASON_CHARS = 200

# Output -> the reason why the rule fails; empty when it holds.
Check = Callable[[str], str]


class RuleError(ValueError):
    """The rule does not compile."""


def first_line(error: object) -> str:
    """Return the first line of a library's message, at most 200 characters."""
    text = str(error)
    if isinstance(error, Exception) and error.args and isinstance(error.args[0], bytes):
        text = error.args[0].decode(errors="replace")
    return text.strip().split("\n", 1)[0][:_MAX_REASON_CHARS]
