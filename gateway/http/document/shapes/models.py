"""The shapes of models, for clients of OpenAI's and of Anthropic's API."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from gateway.http.document.shapes.shape import ABSENT, AnswerShape


class ModelFacts(AnswerShape):
    """Facts about a served model."""

    context_window: int
    capabilities: list[str]


class ModelObject(AnswerShape):
    """A model that the caller may name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    pagantic: ModelFacts = ABSENT


class ModelList(AnswerShape):
    """The models that the caller may name."""

    object: Literal["list"]
    data: list[ModelObject]


class AnthropicModel(AnswerShape):
    """A model, for clients of Anthropic's API."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int = ABSENT
    pagantic: ModelFacts = ABSENT


class AnthropicModelList(AnswerShape):
    """The models, for clients of Anthropic's API."""

    data: list[AnthropicModel]
    first_id: str
    last_id: str
    has_more: bool


class AnyModelList(RootModel[ModelList | AnthropicModelList]):
    """The models, as the API of the client has them."""


class AnyModel(RootModel[ModelObject | AnthropicModel]):
    """A model, as the API of the client has it."""
