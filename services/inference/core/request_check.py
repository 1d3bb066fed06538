"""Checks the values of a request before a model is used. Independent of protos and models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import check_tool_name
from pagantic_common.domain.messages import Role, ToolDefinition, check_messages, count_images
from pagantic_common.domain.sampling import SAMPLING_RANGES, check_sampling_value, parse_options
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.inference.core.generation import (
    ChatPrompt,
    InferenceRequest,
    Prompt,
    PromptPrefixes,
    Sampling,
    ScoreBranch,
)

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKENS = 1024
LOWEST_PRIORITY = -10
MAX_CANDIDATES = 64  # Candidates take slots like requests, so a few requests with this many candidates fill all slots.
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024
MAX_LOGIT_BIAS = 100
MAX_PREFIX_KEYS = 512


def check_request(request: InferenceRequest) -> None:
    """Raise InvalidRequest if a field is out of its range."""
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs is {request.top_logprobs}: it must be between 0 and {MAX_TOP_LOGPROBS}")
    if request.max_tokens < 0:
        raise InvalidRequest(f"max_tokens is {request.max_tokens}: it must not be negative")
    if not LOWEST_PRIORITY <= request.priority <= 0:
        raise InvalidRequest(f"priority is {request.priority}: it must be between {LOWEST_PRIORITY} and 0")
    _check_stop(request.stop)
    if len(request.stop_tokens) > MAX_STOP_TOKENS:
        raise InvalidRequest(f"the request has {len(request.stop_tokens)} stop tokens: send at most {MAX_STOP_TOKENS}")
    parse_options("options_json", request.options_json)
    _check_prefixes(request.prefixes)
    _check_said(request)
    check_prompt(request.prompt)
    check_sampling(request.sampling)
    if request.reasoning.max_tokens < 0:
        raise InvalidRequest(f"reasoning.max_tokens is {request.reasoning.max_tokens}: it must not be negative")


def _check_prefixes(prefixes: PromptPrefixes) -> None:
    count = len(prefixes.keys)
    if count > MAX_PREFIX_KEYS:
        raise InvalidRequest(f"prefixes has {count} keys: send at most {MAX_PREFIX_KEYS}")
    if count and not 1 <= count * prefixes.block_bytes <= prefixes.prompt_bytes:
        raise InvalidRequest(
            f"prefixes has {count} blocks of {prefixes.block_bytes} bytes: there must be at least 1 byte in a block, "
            f"and at most prompt_bytes, {prefixes.prompt_bytes}, in all"
        )


def _check_said(request: InferenceRequest) -> None:
    if request.said_tokens and (request.candidate_count != 1 or request.top_logprobs is not None):
        raise InvalidRequest("said_tokens continue one candidate: leave candidate_count and top_logprobs unset")


def check_prompt(prompt: Prompt) -> None:
    """Raise InvalidRequest if a conversation has a malformed message or tool."""
    if not isinstance(prompt, ChatPrompt):
        return
    if not prompt.messages:
        raise InvalidRequest("chat.messages is empty")
    check_messages(prompt.messages)
    names: set[str] = set()
    for tool in prompt.tools:
        check_tool_name(tool.name)
        if tool.name in names:
            raise InvalidRequest(f"two tools are named {tool.name!r}")
        names.add(tool.name)
        _check_parameters(tool)


def check_scored(prompt: Prompt) -> None:
    """Raise InvalidRequest if the prompt has images, which Score cannot read."""
    check_prompt(prompt)
    if isinstance(prompt, ChatPrompt) and count_images(prompt.messages):
        raise InvalidRequest("Score reads text alone: leave the images out, or use Infer")


def check_branches(prompt: ChatPrompt | str, branches: Sequence[ScoreBranch], continuations: Sequence[str]) -> None:
    """Raise InvalidRequest if there are both branches and continuations, or if the prompt cannot have endings."""
    if not branches:
        return
    if continuations:
        raise InvalidRequest("continuations and branches are both set: send one of them")
    if isinstance(prompt, str):
        return
    if prompt.tools or prompt.messages[-1].role is not Role.USER:
        raise InvalidRequest(
            "branches end a user's message: leave chat.tools empty, and let a user's message be the last"
        )


def check_sampling(sampling: Sampling) -> None:
    """Raise InvalidRequest if a value is out of its range."""
    for name in SAMPLING_RANGES:
        check_sampling_value(f"sampling.{name}", name, getattr(sampling, name))
    _check_bias(sampling.logit_bias)


def _check_bias(bias: Mapping[int, float]) -> None:
    if negative := [token for token in bias if token < 0]:
        raise InvalidRequest(f"sampling.logit_bias names token {negative[0]}: ids begin at 0")
    if len(bias) > MAX_BIASED_TOKENS or not all(abs(value) <= MAX_LOGIT_BIAS for value in bias.values()):
        raise InvalidRequest(
            f"sampling.logit_bias takes at most {MAX_BIASED_TOKENS} tokens, each at most {MAX_LOGIT_BIAS} up or down"
        )


def _check_stop(stop: Sequence[str]) -> None:
    if len(stop) > MAX_STOP_STRINGS or any(not 0 < len(text.encode()) <= MAX_STOP_BYTES for text in stop):
        raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_BYTES} bytes each")


def check_options(request: InferenceRequest, model: str, allowed: Collection[str]) -> None:
    """Raise InvalidRequest if the request has an option that the model does not support."""
    for option in parse_options("options_json", request.options_json):
        if option in allowed:
            continue
        taken = f"it takes {', '.join(sorted(allowed))}" if allowed else "it takes no options"
        raise InvalidRequest(
            f"model {model!r} has no option {option[:64]!r}, as options_json names it: {taken}; allowed_options of a "
            "remote model say which"
        )


def _check_parameters(tool: ToolDefinition) -> None:
    if not tool.parameters_json:
        return
    try:
        schema = parse_json(tool.parameters_json, is_rewritable=True)
    except JsonTextError as error:
        raise InvalidRequest(f"the parameters of tool {tool.name!r} are not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"the parameters of tool {tool.name!r} are not a JSON object")
