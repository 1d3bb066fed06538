"""The operations of OpenAI's chats and raw texts, and of models, which Anthropic's API shares."""

from __future__ import annotations

from gateway.http.document.operations import Operation, Operations, Parameter, Tag
from gateway.http.document.shapes.chats import ChatCompletion, ChatEvent, ChatList, Deleted, StoredMessageList
from gateway.http.document.shapes.continuations import TextCompletion, TextEvent
from gateway.http.document.shapes.models import AnyModel, AnyModelList
from gateway.http.document.tables.pages import page_parameters
from gateway.http.openai.completions.forms import CompletionForm
from gateway.http.openai.forms import ChatForm, MetadataForm

_CHATS = "/v1/chat/completions"
_CHAT = f"{_CHATS}/{{completion_id}}"
_MODEL = "/v1/models/{name}"
_NOTES = {"type": "object", "additionalProperties": {"type": "string"}}
_VERSION = (
    Parameter("anthropic-version", {"type": "string"}, "With it, the answer is that of Anthropic's API.", "header"),
)
_CHAT_PARAMETERS = (
    *page_parameters("asc"),
    Parameter("model", {"type": "string"}, "Only chats with this model, as the client named it."),
    Parameter("metadata", _NOTES, "Only chats with this metadata.", style="deepObject"),
)


OPENAI_OPERATIONS: Operations = {
    ("POST", _CHATS): Operation(
        Tag.OPENAI,
        "createChat",
        "Answer a conversation.",
        ChatForm,
        ChatCompletion,
        ChatEvent,
        required=("model",),
        makes="completion_id",
    ),
    ("GET", _CHATS): Operation(
        Tag.OPENAI, "listChats", "List stored chats.", answer=ChatList, parameters=_CHAT_PARAMETERS
    ),
    ("GET", _CHAT): Operation(Tag.OPENAI, "getChat", "Get a stored chat.", answer=ChatCompletion),
    ("POST", _CHAT): Operation(
        Tag.OPENAI, "updateChat", "Change the metadata of a stored chat.", MetadataForm, ChatCompletion
    ),
    ("DELETE", _CHAT): Operation(Tag.OPENAI, "deleteChat", "Delete a stored chat.", answer=Deleted),
    ("GET", f"{_CHAT}/messages"): Operation(
        Tag.OPENAI,
        "listChatMessages",
        "List the messages of a stored chat.",
        answer=StoredMessageList,
        parameters=page_parameters("asc"),
    ),
    ("POST", "/v1/completions"): Operation(
        Tag.OPENAI,
        "continueTexts",
        "Continue raw texts.",
        CompletionForm,
        TextCompletion,
        TextEvent,
        required=("model", "prompt"),
    ),
    ("GET", "/v1/models"): Operation(
        Tag.MODELS, "listModels", "List the models.", answer=AnyModelList, parameters=_VERSION
    ),
    ("GET", _MODEL): Operation(Tag.MODELS, "getModel", "Get a model.", answer=AnyModel, parameters=_VERSION),
    ("DELETE", _MODEL): Operation(
        Tag.MODELS, "deleteModel", "Models are the deployment's: this always fails.", answer=Deleted
    ),
}
