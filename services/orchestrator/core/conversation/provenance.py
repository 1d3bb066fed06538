"""Tracks the authors of a run's texts, so that text from untrusted sources does not reach tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.messages import Message, Role
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.tools.taint import CONTEXT, Provenance

_SUMMARY = "the summary of the conversation"


def provenance_of(request: Request, prepared: Prepared) -> Provenance:
    """Return the provenance of a conversation before its first inference."""
    provenance = Provenance()
    provenance.trust(prepared.system_prompt)
    history = prepared.history
    if len(history) > prepared.history_end - prepared.history_start:  # A leading summary may repeat text of any author.
        provenance.distrust(history[0].content, _SUMMARY)
        history = history[1:]
    provenance.add_history((*history, *request.messages))
    return provenance


def add_rounds(known: Provenance, prepared: Prepared, transcript: Sequence[Message]) -> None:
    """Add the retrieved context of a run and the results of its tool calls to `known`."""
    if prepared.context_message is not None:
        known.distrust(prepared.context_message.content, CONTEXT)
    # The other messages of a transcript repeat the model's text, so they are omitted.
    known.add_messages(message for message in transcript if message.role in (Role.ASSISTANT, Role.TOOL))
