"""The shapes of responses, conversations and decisions of OpenAI's API."""

from __future__ import annotations

from typing import Any, Literal

from gateway.http.document.shapes.chats import ListPage
from gateway.http.document.shapes.shape import ABSENT, AnswerShape, Extension


class Item(AnswerShape):
    """A message, a call, the output of a call, or reasoning."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]
    status: str


class ItemList(ListPage):
    """A page of items."""

    data: list[Item]


class ResponseUsage(AnswerShape):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseFailure(AnswerShape):
    """Why a response has no answer; the message begins with the code of the taxonomy."""

    code: str
    message: str


class ResponseObject(AnswerShape):
    """A response; `pagantic` is only in an ended response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseFailure | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    model: str
    output: list[Item]
    text: dict[str, Any]
    tools: list[dict[str, Any]]
    usage: ResponseUsage
    metadata: dict[str, str]
    pagantic: Extension = ABSENT


class ResponseEvent(AnswerShape):
    """An event of a response, such as `response.output_text.delta`."""

    type: str
    sequence_number: int


class CompactionItem(AnswerShape):
    """The summary, for the input of a later response."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class Compaction(AnswerShape):
    """A summary in place of a conversation."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[CompactionItem]
    usage: ResponseUsage


class InputTokens(AnswerShape):
    """The number of tokens that a response would read."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Conversation(AnswerShape):
    """A conversation that responses continue."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DecisionAnswer(AnswerShape):
    """The answer to a question; an abstention is a refusal."""

    type: Literal["predicate", "choice", "score", "refusal"]
    name: str | None


class DecisionDetail(AnswerShape):
    """Fields that the API lacks; `abstention` is the reason of a refusal."""

    confidence: float
    label_mass: float
    abstention: str = ABSENT


class DecisionExtension(Extension):
    """Fields that the API lacks, for each question."""

    decisions: list[DecisionDetail]


class DecisionList(AnswerShape):
    """The answers to the questions, in their order."""

    model: str
    answers: list[DecisionAnswer]
    usage: ResponseUsage
    pagantic: DecisionExtension
