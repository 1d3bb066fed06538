"""Names of tools from other sources, in a form that models and their templates can write."""

from __future__ import annotations

import hashlib
import re

MAX_NAME_CHARS = 64
_HASH_CHARS = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def prefixed_name(source: str, tool: str) -> str:
    """Return `<source>_<tool>`, with '_' in place of other characters.

    A name that is too long is cut and ends in a hash of the whole name.
    """
    name = _OTHER.sub("_", f"{source}_{tool}")
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(f"{source}_{tool}".encode(errors="replace")).hexdigest()
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}_{digest[:_HASH_CHARS]}"
