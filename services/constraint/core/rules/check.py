"""The form of a compiled rule, and the error of a rule that does not compile."""

from __future__ import annotations

from collections.abc import Callable

# Output -> the reason why the rule fails; empty when it holds.
Check = Callable[[str], str]


class RuleError(ValueError):
    """The rule does not compile."""
