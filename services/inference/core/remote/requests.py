"""Writes a request as JSON for OpenAI's API, and estimates token counts. Omits fields that the caller did not set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.images import ESTIMATED_TOKENS, Image, split_content
from pagantic_common.domain.messages import (
    Message,
    ModelInfo,
    Role,
    ToolChoice,
    ToolChoiceMode,
    ToolDefinition,
    count_images,
)
from pagantic_common.domain.sampling import SAMPLING_RANGES, parse_options
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.inference.core.generation import (
    DEFAULT_MAX_TOKENS,
    ChatPrompt,
    Constraint,
    ConstraintKind,
    InferenceRequest,
    Prompt,
    ReasoningMode,
    Sampling,
    TokenPrompt,
)
from services.inference.core.prompts import offered_tools, parameters_of, with_joined_system

BYTES_PER_TOKEN = 3  # most texts have fewer tokens: English has 4 to 5 bytes per token, code and other scripts about 3
# The approximate numbers of tokens that a template adds to each message and each tool.
MESSAGE_TOKENS = 8
TOOL_TOKENS = 16
# The constraint service adds options for our own engine to schemas under this key. Other engines do not know these
# options, so they are removed.
_ENGINE_OPTIONS = "x-guidance"
CHAT_PATH = "/chat/completions"
TEXT_PATH = "/completions"
EMBEDDINGS_PATH = "/embeddings"
_SCHEMA_NAME = "output"
# The fields that this module sets. An option with the same name would change the meaning of the response.
OWN_FIELDS = frozenset(
    {
        "model", "stream", "stream_options", "seed", "n", "max_tokens", "max_completion_tokens", "prompt", "messages",
        "tools", "tool_choice", "response_format", "stop", "logprobs", "top_logprobs", "logit_bias",
        "chat_template_kwargs", *SAMPLING_RANGES,
    }
)  # fmt: skip
_MAX_SEED = 2**63 - 1  # engines store a seed as a signed 64-bit integer


def estimate_text(text: str) -> int:
    """Return the estimated token count of text, which is 0 for an empty string."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def estimate_prompt(prompt: Prompt) -> int:
    """Return the estimated token count of a prompt, including its template and tools."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    if isinstance(prompt, str):
        return estimate_text(prompt)
    around = MESSAGE_TOKENS * (len(prompt.messages) + 1) + TOOL_TOKENS * len(prompt.tools)
    seen = ESTIMATED_TOKENS * count_images(prompt.messages)
    return around + seen + sum(estimate_text(text) for text in prompt.texts())


def schema_of(constraint: Constraint, model: str) -> dict[str, Any]:
    """Return the schema of a constraint.

    Raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID) if the constraint is of another kind.
    """
    schema: Any = None
    if constraint.kind is ConstraintKind.SCHEMA:
        schema = _parsed(constraint.text, model)
    elif constraint.kind is ConstraintKind.ENGINE_TEXT and constraint.text.startswith("{"):
        schema = _schema_of_engine_text(_parsed(constraint.text, model))
    if not isinstance(schema, dict):
        raise refuse_constraint(model, "takes JSON Schemas of objects only, no grammars, patterns or lists of values")
    return schema


def refuse_constraint(model: str, reason: str) -> InvalidRequest:
    """Return the error for a constraint that the engine of a model rejects."""
    return InvalidRequest(
        f"the engine of model {model!r} {reason}, or use a model that this service decodes itself",
        code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID,
    )


def _parsed(text: str, model: str) -> Any:
    try:
        return parse_json(text, is_rewritable=True)
    except JsonTextError as error:
        raise refuse_constraint(model, f"takes JSON Schemas, and this one is not JSON ({error})") from None


def _schema_of_engine_text(parsed: Any) -> Any:
    """Return the schema of an engine text that consists of a single schema, or None for any other text."""
    grammars = parsed.get("grammars")
    if not isinstance(grammars, list) or len(grammars) != 1 or not isinstance(grammars[0], dict):
        return None
    schema = grammars[0].get("json_schema")
    if grammars[0].get("lark_grammar") or not isinstance(schema, dict):
        return None
    return {name: value for name, value in schema.items() if name != _ENGINE_OPTIONS}


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of another engine.

    Attributes:
        info: The model's description in this service.
        name: The model's name in the engine's API.
        max_tokens_field: The field of the API that limits the output.
        extra_body: Additional fields of every request. A null value omits the field.
        allowed_options: The fields that a request may set by its options.
    """

    info: ModelInfo
    name: str
    max_tokens_field: str = "max_tokens"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    allowed_options: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RemoteRequest:
    """The path and the JSON body of an HTTP request."""

    path: str
    body: Mapping[str, Any]


def inference_request(request: InferenceRequest, model: RemoteModel, seed: int) -> RemoteRequest:
    """Return the streaming request for an inference. The model must support the request's options.

    Raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID) if the constraint is not a JSON Schema, and InvalidRequest
    (TOOL_NOT_FOUND) if the chosen tool is not offered.
    """
    if request.said_tokens:
        raise InvalidRequest("another engine serves the model, which continues no answer: leave said_tokens empty")
    body: dict[str, Any] = {
        "model": model.name,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": seed & _MAX_SEED,
        **_sampling(request.sampling),
    }
    if request.candidate_count > 1:
        body["n"] = request.candidate_count
    if max_tokens := _max_tokens(request, model.info):
        body[model.max_tokens_field] = max_tokens
    match request.prompt:
        case str():
            path, fields = TEXT_PATH, _text_fields(request, request.prompt, model)
        case ChatPrompt():
            path, fields = CHAT_PATH, _chat_fields(request, request.prompt, model)
        case TokenPrompt():
            raise InvalidRequest("another engine serves the model, which takes no tokens as a prompt: send text")
    options = parse_options("options_json", request.options_json)
    return RemoteRequest(path, _with_extra({**body, **fields, **options}, model))


def embedding_request(texts: Sequence[str], model: RemoteModel) -> RemoteRequest:
    """Return the request for the embedding vectors of texts."""
    body = {"model": model.name, "input": list(texts), "encoding_format": "float"}
    return RemoteRequest(EMBEDDINGS_PATH, _with_extra(body, model))


def _with_extra(body: Mapping[str, Any], model: RemoteModel) -> dict[str, Any]:
    return {name: value for name, value in {**body, **model.extra_body}.items() if value is not None}


def _sampling(sampling: Sampling) -> dict[str, Any]:
    fields = {name: getattr(sampling, name) for name in sorted(sampling.given)}
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return fields


def _max_tokens(request: InferenceRequest, info: ModelInfo) -> int:
    """Return the output limit, or 0 to leave it to the engine.

    It is 0 if the caller sets no limit and the default may exceed the rest of the window.
    """
    if request.max_tokens:
        return request.max_tokens
    if estimate_prompt(request.prompt) + DEFAULT_MAX_TOKENS <= info.context_window:
        return DEFAULT_MAX_TOKENS
    return 0


def _text_fields(request: InferenceRequest, prompt: str, model: RemoteModel) -> dict[str, Any]:
    if request.constraint is not None:
        raise refuse_constraint(model.info.name, "for raw text takes no constraint: send a conversation")
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    fields: dict[str, Any] = {"prompt": prompt}
    if request.stop:
        fields["stop"] = list(request.stop)
    if request.top_logprobs is not None:
        fields["logprobs"] = request.top_logprobs
    return fields


def _chat_fields(request: InferenceRequest, prompt: ChatPrompt, model: RemoteModel) -> dict[str, Any]:
    choice = prompt.tool_choice
    fields: dict[str, Any] = {"messages": with_joined_system([_message(message) for message in prompt.shown.messages])}
    if tools := offered_tools(prompt.tools, choice):
        fields |= {"tools": [_tool(tool) for tool in tools], "tool_choice": _tool_choice(choice)}
    if request.constraint is not None:
        if choice.is_enforced:
            raise InvalidRequest("a constraint and an enforced tool_choice cannot both bind the output")
        if tools:
            # A constraint binds the text of the answer, so the answer cannot be a call.
            fields["tool_choice"] = "none"
        schema = schema_of(request.constraint, model.info.name)
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": _SCHEMA_NAME, "schema": schema}}
    if request.stop and not choice.is_enforced:  # a stop string would cut the call's JSON
        fields["stop"] = list(request.stop)
    if request.top_logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    return {**fields, **_reasoning(request.reasoning.mode)}


def _reasoning(mode: ReasoningMode) -> dict[str, Any]:
    if mode is ReasoningMode.AUTO:
        return {}
    return {"chat_template_kwargs": {"enable_thinking": mode is ReasoningMode.ON}}


def _message(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.images:
        entry["content"] = [_part(part) for part in split_content(message.content, message.images)]
    if message.tool_calls:
        entry["content"] = message.content or None
        entry["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    if message.role is Role.TOOL:
        entry["tool_call_id"] = message.tool_call_id
    return entry


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": part.url}}


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": parameters_of(tool)}
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.tool_name:
        return {"type": "function", "function": {"name": choice.tool_name}}
    if choice.mode is ToolChoiceMode.REQUIRED:
        return "required"
    return "auto"
