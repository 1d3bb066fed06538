"""The properties of a file, as metadata of its document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pagantic_common.domain.chunks import MAX_METADATA_BYTES, parse_metadata
from pagantic_common.domain.text.json_text import dump_json

MAX_PROPERTY_CHARS: Final = 300


def add_properties(metadata_json: str, properties: Mapping[str, str]) -> str:
    """Return metadata extended by the non-empty properties; the caller's values win.

    A property that makes the metadata too large is left out. Raises InvalidRequest for malformed metadata.
    """
    metadata = parse_metadata("file", metadata_json)
    result = metadata_json
    for name, value in properties.items():
        if not value or name in metadata:
            continue
        metadata[name] = value[:MAX_PROPERTY_CHARS]
        extended = dump_json(metadata)
        if len(extended.encode()) > MAX_METADATA_BYTES:
            return result
        result = extended
    return result
