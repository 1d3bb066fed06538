"""Limits the entries of every list in a request, before any other code reads the request.

An empty message in a list takes two bytes on the wire, but hundreds of bytes and some work once it is decoded. The size
of a message alone therefore does not limit memory or time. Services may accept fewer entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

# The limit for all lists and maps of a message together. Lists of numbers take little memory and do not count.
MAX_ENTRIES = 65_536
MAX_TOKENS = 1 << 20

# Maps each repeated field to its maximum number of entries, by the full names of the message and the field without
# `pagantic.` and the version. The table contains every repeated field that a request can contain.
_LIMITS: Mapping[str, Mapping[str, int]] = {
    "common.Message": {"tool_calls": 128, "parts": 1024},
    "common.ToolDefinition": {"requires": 32},
    "orchestrator.SystemRequest": {
        "messages": 4096,
        "tools": 1024,
        "rules": 100,
        "client_tools": 128,
        "tool_rules": 128,
        "metadata": 64,
    },
    "orchestrator.Instructions": {"sets": 100},
    "orchestrator.InstructionSet": {"rules": 1000},
    "orchestrator.PromptTemplate": {"variables": 256},
    "orchestrator.ExecutionHints": {"stop": 16, "logit_bias": 1024},
    "orchestrator.ExecutionPlan": {"steps": 64},
    "orchestrator.Step": {"depends_on": 1024},
    "orchestrator.PlanPolicy": {"allowed_step_kinds": 64},
    "orchestrator.MessageList": {"messages": 4096},
    "orchestrator.CandidateList": {"candidates": 1000},
    "orchestrator.ContextIR": {"chunks": 1000},
    "orchestrator.ToolResultList": {"tool_results": 1000},
    "orchestrator.Replay": {"tool_results": 128},
    "orchestrator.Decisions": {"questions": 400},
    "orchestrator.ChoiceQuestion": {"options": 255},
    "orchestrator.ScoreQuestion": {"levels": 255},
    "orchestrator.ListExecutionsRequest": {"metadata": 64},
    "orchestrator.UpdateExecutionRequest": {"metadata": 64, "removed_keys": 64},
    "orchestrator.UpdateSessionRequest": {
        "state_json": 100,
        "removed_keys": 100,
        "appended_messages": 100,
        "replaced_messages": 100,
    },
    "orchestrator.GetUsageRequest": {"group_by": 16},
    "orchestrator.CreateKeyRequest": {"scopes": 16},
    "orchestrator.RerankRequest": {"texts": 1024},
    "constraint.CompileRulesRequest": {"rules": 100},
    "constraint.ValidateRulesRequest": {"rules": 100},
    "constraint.EnforceRequest": {"rules": 100, "sources": 1000},
    "constraint.EnumList": {"values": 10_000},
    "constraint.CitedSources": {"texts": 1000},
    "context.IngestRequest": {"documents": 1000},
    "context.DeleteRequest": {"sources": 10_000},
    "context.RetrieveRequest": {"more_queries": 8},
    "context.BuildContextRequest": {"chunks": 1000, "more_queries": 8},
    "context.RerankPolicy": {"scorers": 8},
    "rerank.RerankRequest": {"chunks": 1000, "scorers": 8},
    "inference.ChatPrompt": {"messages": 65_536, "tools": 1024},  # The messages are a turn and its stored conversation.
    "inference.Sampling": {"logit_bias": 1024},
    "inference.InferRequest": {"stop": 16, "said_tokens": MAX_TOKENS},
    "inference.PromptPrefixes": {"keys": 1024},
    "inference.CancelCandidatesRequest": {"candidate_indexes": 1024},
    "inference.EmbedRequest": {"texts": 2048},
    "inference.ScorePairsRequest": {"texts": 1024},
    "inference.ScoreRequest": {"continuations": 1024, "branches": 1024},
    "inference.ScoreBranch": {"continuations": 1024},
    "inference.DetokenizeRequest": {"tokens": MAX_TOKENS},
    "inference.CountTokensRequest": {"texts": 65_536},
    "tools.ListToolsRequest": {"names": 1024},
    "tools.SearchToolsRequest": {"names": 1024},
    "tools.McpCommand": {"argv": 256},
    "tools.GetMcpPromptRequest": {"arguments": 256},
    "tools.OfferToolsRequest": {"tools": 1024},
}
LIMITS: Mapping[str, int] = MappingProxyType(
    {
        f"pagantic.{package}.v1.{message}.{field}": limit
        for (package, message), fields in ((name.split("."), fields) for name, fields in _LIMITS.items())
        for field, limit in fields.items()
    }
)
_ADVICE: Mapping[str, str] = {
    "pagantic.orchestrator.v1.SystemRequest.messages": "keep a long conversation in a session",
}


def objection_of(message: Message) -> str:
    """Return the objection to a message with too many entries, or an empty string.

    The objection is a sentence that names the field by its path, the number of entries and the limit.
    """
    walk = _Walk()
    if not (reason := walk.visit(message)):
        return ""
    return "".join(reversed(walk.path)) + reason


@dataclass(frozen=True, slots=True)
class _Field:
    """A repeated field, or a field whose message can contain repeated fields.

    Attributes:
        limit: Maximum number of entries, or None for a field that does not occur in requests.
        has_lists: Whether the field's messages can contain repeated fields.
        is_counted: Whether the entries count for MAX_ENTRIES.
    """

    name: str
    full_name: str
    limit: int | None
    is_repeated: bool
    is_map: bool
    has_lists: bool
    is_counted: bool


class _Walk:
    """Visits the repeated fields of a message, and counts their entries.

    Attributes:
        entries: The number of entries so far.
        path: The steps from the field with too many entries back to the message.
    """

    def __init__(self) -> None:
        self.entries = 0
        self.path: list[str] = []

    def visit(self, message: Message) -> str:
        """Return the objection to a list of the message with too many entries, or an empty string."""
        for field in _fields_of(message.DESCRIPTOR):
            if not field.is_repeated:
                if message.HasField(field.name) and (reason := self.visit(getattr(message, field.name))):
                    self.path.append(f"{field.name}.")
                    return reason
            elif (entries := getattr(message, field.name)) and (reason := self._visit_list(field, entries)):
                return reason
        return ""

    def _visit_list(self, field: _Field, entries: Any) -> str:
        count = len(entries)
        if field.limit is not None and count > field.limit:
            advice = _ADVICE.get(field.full_name, "send fewer at once")
            return f"{field.name} has {count} entries, at most {field.limit} are taken: {advice}"
        if field.is_counted:
            self.entries += count
        if self.entries > MAX_ENTRIES:
            return f"{field.name} brings the lists of the message to more than {MAX_ENTRIES} entries: send less at once"
        if not field.has_lists:
            return ""
        pairs: Iterable[tuple[object, Message]] = entries.items() if field.is_map else enumerate(entries)
        for key, entry in pairs:
            if reason := self.visit(entry):
                self.path.append(f"{field.name}[{key}].")
                return reason
        return ""


@cache
def _fields_of(descriptor: Descriptor) -> tuple[_Field, ...]:
    """Return the fields that can contain lists, directly or in their messages."""
    fields = []
    for field in descriptor.fields:
        has_lists = _holds_lists(_message_of(field), frozenset())
        if field.is_repeated or has_lists:
            fields.append(
                _Field(
                    field.name,
                    field.full_name,
                    LIMITS.get(field.full_name),
                    is_repeated=field.is_repeated,
                    is_map=_is_map(field.message_type),
                    has_lists=has_lists,
                    is_counted=field.message_type is not None or field.type in _TEXTS,
                )
            )
    return tuple(fields)


_TEXTS = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})


def _is_map(descriptor: Descriptor | None) -> bool:
    return descriptor is not None and descriptor.GetOptions().map_entry


def _message_of(field: FieldDescriptor) -> Descriptor | None:
    """Return the type of the messages in a field, or of the values if the field is a map."""
    descriptor = field.message_type
    if descriptor is not None and _is_map(descriptor):
        return descriptor.fields_by_name["value"].message_type
    return descriptor


def _holds_lists(descriptor: Descriptor | None, above: frozenset[str]) -> bool:
    if descriptor is None or descriptor.full_name in above:
        return False
    inside = above | {descriptor.full_name}
    return any(field.is_repeated or _holds_lists(_message_of(field), inside) for field in descriptor.fields)
