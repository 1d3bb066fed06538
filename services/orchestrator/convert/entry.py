"""Journal entries <-> JSON documents of their kind and value. What another version wrote may not be read."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from services.orchestrator.core.replay import Admitted, CallBegan, CallEnded, Entry, StepEnded
from services.orchestrator.core.run import Enforced, Failed, Inferred, Planned, PlanRan, Prepared, Sampled, ToolsRan

_KINDS = (
    Admitted,
    CallBegan,
    CallEnded,
    StepEnded,
    Prepared,
    Inferred,
    Sampled,
    ToolsRan,
    Enforced,
    Planned,
    PlanRan,
    Failed,
)
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in _KINDS}


class UnreadableEntryError(ValueError):
    """An entry that this version cannot read."""


def entry_to_json(entry: Entry) -> bytes:
    """Encode an entry."""
    return to_json([type(entry).__name__, entry], inf_nan_mode="constants")


def entry_from_json(document: bytes) -> Entry:
    """Decode an entry; raises UnreadableEntryError."""
    try:
        kind, value = from_json(document)
        entry: Entry = _ADAPTERS[kind].validate_python(value)
    except (ValueError, KeyError, ValidationError) as error:
        raise UnreadableEntryError(f"an entry cannot be read: {error}") from None
    return entry
