"""The user's options for the next requests, and the requests built from them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Options, chat_request

# A larger text, with its envelope, would exceed or exhaust the default of MAX_REQUEST_BYTES.
MAX_TEXT_BYTES: Final = 256 * 1024
REASONING: Final = ("auto", "on", "off")


@dataclass(frozen=True)
class Choices:
    """The options of requests. An empty or unset option selects the system's default.

    Attributes:
    model: Alias of a model.
    system: System prompt.
    tools: Tools that the model may call. Without names, no tool is offered.
    collection: Collection to retrieve from.
    cites: Whether the answer must quote the collection.
    asks: Whether each tool call waits for an approval.
    reasoning: "auto", "on" or "off".
    temperature: A number from 0 to 2.
    max_tokens: Maximum number of output tokens.
    """

    model: str = ""
    system: str = ""
    tools: tuple[str, ...] = ()
    collection: str = ""
    cites: bool = False
    asks: bool = False
    reasoning: str = "auto"
    temperature: float | None = None
    max_tokens: int = 0

    def request(self, text: str, session_id: str) -> execution_pb2.SystemRequest:
        """Return the request for a message.

        The request runs in the background, so that a lost connection does not stop it.
        """
        options: Options = {"request_id": uuid.uuid4().hex[:16], "model": self.model, "max_tokens": self.max_tokens}
        if self.collection:
            options["context"] = self.collection
            options["citations"] = self.cites
        if self.asks:
            options["tool_rules"] = {"*": "ask"}
        if self.reasoning != REASONING[0]:
            options["reasoning"] = self.reasoning
        if self.temperature is not None:
            options["temperature"] = self.temperature
        request = chat_request(text, session_id=session_id, tools=list(self.tools), system=self.system, **options)
        request.background = True
        return request


def as_before(request: execution_pb2.SystemRequest, earlier: execution_pb2.SystemRequest | None) -> bool:
    """Give a request the id of an earlier request if both are otherwise equal, and return whether they are equal.

    A request may have been accepted even if its events never arrived. With the same id, it runs only once.
    """
    if earlier is None:
        return False
    renamed = execution_pb2.SystemRequest()
    renamed.CopyFrom(request)
    renamed.request_id = earlier.request_id
    if renamed != earlier:
        return False
    request.request_id = earlier.request_id
    return True


def new_session_id() -> str:
    """Return the id of a new conversation."""
    return f"chat-{uuid.uuid4().hex[:8]}"


def refusal_of(text: str) -> str:
    """Return the reason that a text cannot be sent, with a remedy, or an empty string if it can be sent."""
    size = len(text.encode(errors="surrogatepass"))
    if size <= MAX_TEXT_BYTES:
        return ""
    return (
        f"{size:,} bytes are too long for a message, which has at most {MAX_TEXT_BYTES:,}. Save the text as a file, "
        "`pagantic ingest COLLECTION FILE`, and choose the collection in the options, Ctrl+G."
    )
