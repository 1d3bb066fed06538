"""Compaction: a summary that replaces a conversation. The client stores the summary, which is not secret."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Literal, NotRequired

from gateway.http.bodies import AnswerShape
from gateway.http.openai.forms import IgnoredFields
from gateway.http.openai.responses.objects import ResponseHead, ResponseUsage, usage_of
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest

_ASK = (
    "Summarize the conversation so far for yourself, so that you can go on with it from the summary alone. Keep names, "
    "numbers, decisions, the results of tools, and what is still to be done. Write the summary and nothing else."
)
_TOLD = "The conversation before this message, in summary:\n\n"


class CompactionItem(AnswerShape):
    """The summary, to be used as input of a later response."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class Compaction(AnswerShape):
    """A summary that replaces a conversation."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[CompactionItem]
    usage: ResponseUsage
    pagantic: NotRequired[IgnoredFields]


def ask_for_summary(request: execution_pb2.SystemRequest) -> None:
    """Change a request into a request for a summary of its messages."""
    request.mode = execution_pb2.MODE_CHAT
    request.messages.add(role=message_pb2.ROLE_USER, content=_ASK)
    request.hints.tool_choice.mode = message_pb2.TOOL_CHOICE_MODE_NONE
    request.ClearField("output")
    request.ClearField("client_tools")


def compaction_of(head: ResponseHead, created_s: int, response: execution_pb2.SystemResponse) -> Compaction:
    """Return the `response.compaction` object for a summary."""
    content = base64.b64encode(json.dumps({"summary": response.content}).encode()).decode()
    return {
        "id": head.id,
        "object": "response.compaction",
        "created_at": created_s,
        "output": [{"id": f"cmp_{response.request_id}", "type": "compaction", "encrypted_content": content}],
        "usage": usage_of(response.token_usage),
    }


def summary_message(content: str, where: str) -> dict[str, Any]:
    """Return the message that replaces a compacted conversation.

    Raises InvalidRequest if the content is not a compaction of this API.
    """
    try:
        summary = json.loads(base64.b64decode(content, validate=True))["summary"]
    except (binascii.Error, ValueError, KeyError, TypeError):
        summary = None
    if not isinstance(summary, str):
        raise InvalidRequest(f"{where}.encrypted_content is not of this API: send what /v1/responses/compact returned")
    return {"role": "system", "content": _TOLD + summary}
