"""The operations of responses and conversations of OpenAI's API."""

from __future__ import annotations

from gateway.http.document.operations import Operation, Operations, Parameter, Tag
from gateway.http.document.shapes.chats import Deleted
from gateway.http.document.shapes.responses import (
    Compaction,
    Conversation,
    InputTokens,
    Item,
    ItemList,
    ResponseEvent,
    ResponseObject,
)
from gateway.http.document.tables.pages import page_parameters
from gateway.http.openai.responses.forms import ConversationForm, ItemsForm, ResponseForm
from gateway.http.openai.responses.stored import MAX_SEQUENCE

_RESPONSES = "/v1/responses"
_RESPONSE = f"{_RESPONSES}/{{response_id}}"
_CONVERSATIONS = "/v1/conversations"
_CONVERSATION = f"{_CONVERSATIONS}/{{conversation_id}}"
_ITEMS = f"{_CONVERSATION}/items"
_FOLLOWING = (
    Parameter("stream", {"type": "boolean"}, "Whether to send its events."),
    Parameter(
        "starting_after",
        {"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE},
        "Only events after the one with this sequence number.",
    ),
)


def _item_list(name: str, summary: str) -> Operation:
    return Operation(Tag.OPENAI, name, summary, answer=ItemList, parameters=page_parameters("desc"))


RESPONSE_OPERATIONS: Operations = {
    ("POST", _RESPONSES): Operation(
        Tag.OPENAI,
        "createResponse",
        "Answer an input.",
        ResponseForm,
        ResponseObject,
        ResponseEvent,
        required=("model",),
        makes="response_id",
    ),
    ("POST", f"{_RESPONSES}/compact"): Operation(
        Tag.OPENAI, "compactResponse", "Summarize a conversation.", ResponseForm, Compaction, required=("model",)
    ),
    ("POST", f"{_RESPONSES}/input_tokens"): Operation(
        Tag.OPENAI,
        "countInputTokens",
        "Count the tokens that a response would read.",
        ResponseForm,
        InputTokens,
        may_be_empty=True,
    ),
    ("GET", _RESPONSE): Operation(
        Tag.OPENAI,
        "getResponse",
        "Get or follow a stored response.",
        answer=ResponseObject,
        events=ResponseEvent,
        parameters=_FOLLOWING,
    ),
    ("DELETE", _RESPONSE): Operation(Tag.OPENAI, "deleteResponse", "Delete a stored response.", answer=Deleted),
    ("POST", f"{_RESPONSE}/cancel"): Operation(
        Tag.OPENAI, "cancelResponse", "Cancel a response.", answer=ResponseObject
    ),
    ("GET", f"{_RESPONSE}/input_items"): _item_list("listInputItems", "List the input of a stored response."),
    ("POST", _CONVERSATIONS): Operation(
        Tag.OPENAI,
        "createConversation",
        "Make a conversation.",
        ConversationForm,
        Conversation,
        may_be_empty=True,
        makes="conversation_id",
    ),
    ("GET", _CONVERSATION): Operation(Tag.OPENAI, "getConversation", "Get a conversation.", answer=Conversation),
    ("POST", _CONVERSATION): Operation(
        Tag.OPENAI, "updateConversation", "Change the metadata of a conversation.", ConversationForm, Conversation
    ),
    ("DELETE", _CONVERSATION): Operation(Tag.OPENAI, "deleteConversation", "Delete a conversation.", answer=Deleted),
    ("GET", _ITEMS): _item_list("listConversationItems", "List the items of a conversation."),
    ("POST", _ITEMS): Operation(
        Tag.OPENAI, "addConversationItems", "Add items to a conversation.", ItemsForm, ItemList
    ),
    ("GET", f"{_ITEMS}/{{item_id}}"): Operation(
        Tag.OPENAI, "getConversationItem", "Get an item of a conversation.", answer=Item
    ),
    ("DELETE", f"{_ITEMS}/{{item_id}}"): Operation(
        Tag.OPENAI, "deleteConversationItem", "Items cannot be deleted: this always fails.", answer=Deleted
    ),
}
