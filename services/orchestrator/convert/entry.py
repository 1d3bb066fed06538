"""Journal entries <-> JSON documents of their kind and value. What another version wrote may not be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from services.orchestrator.core.replay import Admitted, CallBegan, CallEnded, Entry, Inside, StepEnded
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
    """Encode an entry; what happened inside a step comes with the step's name and the number of its run.

    Of the history that a run sees only the positions are kept, for the conversation is stored: else it would be stored
    again with each of its turns.
    """
    if isinstance(entry, Prepared):
        entry = replace(entry, history=entry.history[: len(entry.history) - referred_count(entry)])
    document: list[Any] = [type(entry).__name__, entry]
    if isinstance(entry, Inside):
        document = [type(entry.happened).__name__, entry.happened, entry.step, entry.number]
    return to_json(document, inf_nan_mode="constants")


def referred_count(prepared: Prepared) -> int:
    """Return how many messages of a history are those of the stored conversation."""
    return prepared.history_end - prepared.history_start


def entry_from_json(document: bytes) -> Entry:
    """Decode an entry; raises UnreadableEntryError."""
    try:
        kind, value, *inside = from_json(document)
        entry: Any = _ADAPTERS[kind].validate_python(value)
        found: Entry = Inside(str(inside[0]), int(inside[1]), entry) if inside else entry
    except ValidationError as error:  # its own text has the values, which may be what people said
        where = error.errors(include_input=False, include_url=False)[0]
        raise UnreadableEntryError(f"an entry of {kind} cannot be read: {where['loc']}: {where['msg']}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise UnreadableEntryError("an entry cannot be read: it is of no kind that this version has") from None
    return found
