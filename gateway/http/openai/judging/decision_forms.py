"""The body of requests to `/v1/decisions`, as OpenAI's API document describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from gateway.http.openai.forms import MAX_MESSAGES, Form, MoreFields

MAX_QUESTIONS = 400
MAX_ANSWERS = 255


class InputPart(Form):
    """A part of a text; an image cannot be read."""

    type: str
    text: str | None = None
    refusal: str | None = None
    data: dict[str, Any] | list[dict[str, Any]] | None = None


Text = str | list[InputPart]


class InputItem(Form):
    """A message, a call, or the output of a call."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""
    output: Text | None = None


class ChoiceOption(Form):
    """An option of a choice; true and "true" are different values."""

    value: StrictBool | StrictStr
    description: str | None = None


class ScoreLevel(Form):
    """A level of a scale."""

    label: str
    description: str | None = None


class QuestionForm(Form):
    """A question; `choices` belong to a choice, and `levels` to a score."""

    type: Literal["predicate", "choice", "score"]
    instructions: Text
    name: str | None = None
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MAX_ANSWERS)] | None = None
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MAX_ANSWERS)] | None = None


class DecisionForm(Form):
    """A request of `/v1/decisions`."""

    model: str = ""
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    questions: Annotated[list[QuestionForm], Field(min_length=1, max_length=MAX_QUESTIONS)]
    pagantic: MoreFields | None = None
