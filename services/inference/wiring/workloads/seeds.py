"""Seeds of random streams."""

from __future__ import annotations

import os


def new_seed() -> int:
    """Return a seed for a request that has none."""
    return int.from_bytes(os.urandom(4), "little")
