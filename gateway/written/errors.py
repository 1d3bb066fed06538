"""The error for files that people write."""

from __future__ import annotations


class WrittenError(ValueError):
    """Raised if a value in a written file is invalid. The message names the position and the reason."""
