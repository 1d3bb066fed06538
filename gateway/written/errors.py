"""The error of files that people write."""

from __future__ import annotations


class WrittenError(ValueError):
    """A written value is wrong; the message says where and why."""
