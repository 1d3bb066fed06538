"""The type of a compiled rule, and the error of a rule that does not compile."""

from __future__ import annotations

from collections.abc import Callable

# A check takes an output and returns the reason why the rule fails, or an empty string if the rule holds.
Check = Callable[[str], str]


class RuleError(ValueError):
    """A rule cannot be compiled."""
