"""The type of a compiled rule, and the error of a rule that does not compile."""

from __future__ import annotations

from collections.abc import Callable

# A check accepts an output and returns the reason that the rule fails, or an empty string if the rule holds.
Check = Callable[[str], str]


class RuleError(ValueError):
    """A rule does not compile."""
