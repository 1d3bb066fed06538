"""Journal entries <-> JSON documents of their kind and value, in a form that outlives names of Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from services.orchestrator.core.execution.inputs import Enforced, Failed, Inferred, Planned, PlanRan, Sampled, ToolsRan
from services.orchestrator.core.execution.progress import CallBegan, CallEnded, NestedInput, StepEnded
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.prepared import Prepared

# The names are stored. A class may be renamed, its name here may not; a form that an older reader would misread takes a
# name with its version ("Prepared.2"), and the old name keeps a reader. A journal of each release is kept in the tests.
KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "Admitted": Admitted,
        "CallBegan": CallBegan,
        "CallEnded": CallEnded,
        "StepEnded": StepEnded,
        "Prepared": Prepared,
        "Inferred": Inferred,
        "Sampled": Sampled,
        "ToolsRan": ToolsRan,
        "Enforced": Enforced,
        "Planned": Planned,
        "PlanRan": PlanRan,
        "Failed": Failed,
    }
)
_NAMES = {kind: name for name, kind in KINDS.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}


class UnreadableEntryError(ValueError):
    """An entry that this version cannot read."""


def entry_to_json(entry: Entry) -> bytes:
    """Encode an entry; what happened inside a step comes with the step's name and the number of its run.

    Of the history that a run sees only the positions are kept, for the conversation is stored: else it would be stored
    again with each of its turns.
    """
    if isinstance(entry, Prepared):
        entry = replace(entry, history=entry.history[: len(entry.history) - referred_count(entry)])
    if isinstance(entry, NestedInput):
        document: list[Any] = [_NAMES[type(entry.happened)], entry.happened, entry.step, entry.number]
    else:
        document = [_NAMES[type(entry)], entry]
    return to_json(document, inf_nan_mode="constants")


def referred_count(prepared: Prepared) -> int:
    """Return how many messages of a history are those of the stored conversation."""
    return prepared.history_end - prepared.history_start


def entry_from_json(document: bytes) -> Entry:
    """Decode an entry; raises UnreadableEntryError."""
    try:
        kind, value, *inside = from_json(document)
        entry: Any = _ADAPTERS[kind].validate_python(value)
        found: Entry = NestedInput(str(inside[0]), int(inside[1]), entry) if inside else entry
    except ValidationError as error:  # its own text has the values, which may be what people said
        where = error.errors(include_input=False, include_url=False)[0]
        raise UnreadableEntryError(f"an entry of {kind} cannot be read: {where['loc']}: {where['msg']}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise UnreadableEntryError("an entry cannot be read: it is of no kind that this version has") from None
    return found
