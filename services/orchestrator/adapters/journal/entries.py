"""Journal entries <-> JSON documents of their kind and value, in a form that outlives the names of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from pagantic_common.domain.messages import Message
from services.orchestrator.core.execution.inputs import (
    Decided,
    Enforced,
    Failed,
    Inferred,
    InputChecked,
    Planned,
    PlanRan,
    Sampled,
    ToolsRan,
)
from services.orchestrator.core.execution.progress import CallBegan, CallEnded, NestedInput, StepEnded
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.prepared import Prepared

# The names are stored: a class may be renamed, its name here may not. A form that an older reader would misread gets a
# name with a version ("Prepared.2"), and the old name keeps its reader. The tests keep a journal of each release.
KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "Admitted": Admitted,
        "CallBegan": CallBegan,
        "CallEnded": CallEnded,
        "StepEnded": StepEnded,
        "InputChecked": InputChecked,
        "Prepared": Prepared,
        "Inferred": Inferred,
        "Sampled": Sampled,
        "Decided": Decided,
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
    """Encode an entry; the input of a step's machine comes with the step's name and the number of its run.

    Of a stored conversation only the positions are kept: else each turn would store the whole conversation again.
    """
    if isinstance(entry, Prepared):
        entry = replace(entry, history=entry.history[: len(entry.history) - len(referred_positions(entry))])
    if isinstance(entry, NestedInput):
        document: list[Any] = [_NAMES[type(entry.happened)], entry.happened, entry.step, entry.number]
    else:
        document = [_NAMES[type(entry)], entry]
    return to_json(document, inf_nan_mode="constants")


def referred_positions(entry: Entry) -> range:
    """Return the positions of the stored conversation that an entry refers to instead of keeping the messages."""
    if isinstance(entry, Prepared):
        return range(entry.history_start, entry.history_end)
    return range(0)


def with_history(entry: Entry, referred: Sequence[Message]) -> Entry:
    """Return an entry with the messages that it refers to."""
    if isinstance(entry, Prepared):
        return replace(entry, history=(*entry.history, *referred))
    return entry


def entry_from_json(document: bytes) -> Entry:
    """Decode an entry; raises UnreadableEntryError."""
    try:
        kind, value, *inside = from_json(document)
        entry: Any = _ADAPTERS[kind].validate_python(value)
        if inside:
            entry = NestedInput(str(inside[0]), int(inside[1]), entry)
    except ValidationError as error:  # pydantic's message contains the values, which may be private
        where = error.errors(include_input=False, include_url=False)[0]
        raise UnreadableEntryError(f"an entry of {kind} cannot be read: {where['loc']}: {where['msg']}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise UnreadableEntryError("an entry cannot be read: this version does not have its kind") from None
    found: Entry = entry
    return found
