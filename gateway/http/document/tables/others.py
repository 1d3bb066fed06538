"""The operations of Anthropic's and Ollama's APIs."""

from __future__ import annotations

from gateway.http.anthropic.forms import MessagesForm
from gateway.http.document.operations import Operation, Operations, Tag
from gateway.http.document.shapes.messages import AnthropicMessage, MessageEvent
from gateway.http.document.shapes.ollama import (
    OllamaChat,
    OllamaChatLine,
    OllamaModelList,
    OllamaText,
    OllamaTextLine,
    OllamaVersion,
    ShownModel,
)
from gateway.http.ollama.forms import GenerateForm, OllamaChatForm, ShowForm

OTHER_OPERATIONS: Operations = {
    ("POST", "/v1/messages"): Operation(
        Tag.ANTHROPIC, "createMessage", "Answer a conversation.", MessagesForm, AnthropicMessage, MessageEvent
    ),
    ("POST", "/api/chat"): Operation(
        Tag.OLLAMA, "ollamaChat", "Answer a conversation.", OllamaChatForm, OllamaChat, OllamaChatLine
    ),
    ("POST", "/api/generate"): Operation(
        Tag.OLLAMA, "ollamaGenerate", "Answer a prompt.", GenerateForm, OllamaText, OllamaTextLine
    ),
    ("GET", "/api/tags"): Operation(Tag.OLLAMA, "ollamaTags", "List the models.", answer=OllamaModelList),
    ("POST", "/api/show"): Operation(Tag.OLLAMA, "ollamaShow", "Show a model.", ShowForm, ShownModel),
    ("GET", "/api/version"): Operation(
        Tag.OLLAMA, "ollamaVersion", "Tell the version of the API.", answer=OllamaVersion
    ),
}
