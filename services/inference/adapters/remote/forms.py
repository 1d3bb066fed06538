"""Parses the parts of engine responses that this service reads. Missing and null fields get their defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from services.inference.core.embedding import Vectors
from services.inference.core.generation import TokenLogprob
from services.inference.core.remote.answers import CallPiece, ChoicePiece, Chunk, Counts

UNKNOWN_TOKEN = -1
MAX_COUNT = 2**31 - 1
MIN_LOGPROB = -9999.0  # the value that the API reports for a probability of 0

ValueT = TypeVar("ValueT")


def _text(value: Any) -> Any:
    """Replace lone surrogates, which UTF-8 cannot encode. Returns an empty string for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _list(value: Any) -> Any:
    return [] if value is None else value


def _count(value: Any) -> Any:
    return 0 if value is None else value


Text = Annotated[str, BeforeValidator(_text)]
Count = Annotated[int, BeforeValidator(_count), Field(ge=0, le=MAX_COUNT)]
Several = Annotated[list[ValueT], BeforeValidator(_list)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Function(_Form):
    name: Text = ""
    arguments: Text = ""


class _Call(_Form):
    index: int = 0
    id: Text = ""
    function: _Function | None = None


class _Alternative(_Form):
    token: Text = ""
    id: Annotated[int, Field(ge=UNKNOWN_TOKEN, le=MAX_COUNT)] = UNKNOWN_TOKEN
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None
    logprob: float | None = None
    top_logprobs: Several[_Alternative] = []


class _Logprobs(_Form):
    """The log-probabilities of a choice: in `content` for a chat, and in the other fields for raw text."""

    content: Several[_Alternative] = []
    tokens: Several[Text] = []
    token_logprobs: Several[float | None] = []
    top_logprobs: Several[dict[str, float | None] | None] = []


class _Delta(_Form):
    content: Text = ""
    reasoning_content: Text = ""
    reasoning: Text = ""
    tool_calls: Several[_Call] = []


class _Choice(_Form):
    index: int = 0
    delta: _Delta | None = None
    text: Text = ""
    logprobs: _Logprobs | None = None
    finish_reason: Text = ""


class _PromptDetails(_Form):
    cached_tokens: Count = 0


class _OutputDetails(_Form):
    reasoning_tokens: Count = 0


class _Usage(_Form):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _ChunkForm(_Form):
    choices: Several[_Choice] = []
    usage: _Usage | None = None


class _Vector(_Form):
    index: Annotated[int, Field(ge=0)]
    embedding: Annotated[list[float], Field(min_length=1)]


class _EmbeddingsForm(_Form):
    data: Several[_Vector] = []
    usage: _Usage | None = None


def chunk_of(data: object) -> Chunk:
    """Parse a chunk of a stream. Raises pydantic's ValidationError if the data is invalid."""
    form = _ChunkForm.model_validate(data, strict=False)
    return Chunk(tuple(_choice(choice) for choice in form.choices), _counts(form.usage))


def embeddings_of(data: object) -> tuple[Vectors, int]:
    """Parse a response's vectors, in order, and its token count. Raises ValueError if the data is invalid."""
    form = _EmbeddingsForm.model_validate(data)
    rows = sorted(form.data, key=lambda row: row.index)
    if [row.index for row in rows] != list(range(len(rows))):
        raise ValueError("the vectors are not numbered from 0")
    # A component that is too large becomes infinite and fails the check below.
    with np.errstate(over="ignore"):
        vectors = np.array([row.embedding for row in rows], dtype=np.float32)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():  # noqa: PLR2004 - rows and components
        raise ValueError("the vectors are not finite, or of one length")
    return vectors, (form.usage or _Usage()).prompt_tokens


def _choice(choice: _Choice) -> ChoicePiece:
    delta = choice.delta or _Delta()
    return ChoicePiece(
        index=choice.index,
        content=delta.content or choice.text,
        reasoning=delta.reasoning_content or delta.reasoning,
        calls=tuple(_call(call) for call in delta.tool_calls),
        logprobs=tuple(_logprobs(choice.logprobs)),
        finish_reason=choice.finish_reason,
    )


def _call(call: _Call) -> CallPiece:
    function = call.function or _Function()
    return CallPiece(call.index, call.id, function.name, function.arguments)


def _counts(usage: _Usage | None) -> Counts | None:
    if usage is None:
        return None
    return Counts(
        usage.prompt_tokens,
        usage.completion_tokens,
        (usage.prompt_tokens_details or _PromptDetails()).cached_tokens,
        (usage.completion_tokens_details or _OutputDetails()).reasoning_tokens,
    )


def _logprobs(logprobs: _Logprobs | None) -> Iterable[TokenLogprob]:
    if logprobs is None:
        return ()
    if logprobs.content:
        return [_logprob(entry, tuple(map(_logprob, entry.top_logprobs))) for entry in logprobs.content]
    return _text_logprobs(logprobs)


def _logprob(entry: _Alternative, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    piece = entry.token.encode() if entry.bytes is None else bytes(entry.bytes)
    return TokenLogprob(entry.id, piece, _bounded(entry.logprob), top)


def _text_logprobs(logprobs: _Logprobs) -> Iterable[TokenLogprob]:
    for position, token in enumerate(logprobs.tokens):
        values, tops = logprobs.token_logprobs, logprobs.top_logprobs
        value = values[position] if position < len(values) else None
        alternatives = (tops[position] if position < len(tops) else None) or {}
        best_first = sorted(((_bounded(of), text) for text, of in alternatives.items()), reverse=True)
        top = tuple(TokenLogprob(UNKNOWN_TOKEN, text.encode(errors="replace"), of) for of, text in best_first)
        yield TokenLogprob(UNKNOWN_TOKEN, token.encode(), _bounded(value), top)


def _bounded(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else max(MIN_LOGPROB, min(0.0, logprob))
