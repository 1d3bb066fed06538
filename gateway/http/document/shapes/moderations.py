"""The shapes of moderations of OpenAI's API."""

from __future__ import annotations

from typing import Literal

from gateway.http.document.shapes.shape import AnswerShape, Extension


class ModerationResult(AnswerShape):
    """The findings for an input, by category."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationReport(AnswerShape):
    """The findings for all inputs."""

    id: str
    model: str
    results: list[ModerationResult]
    pagantic: Extension
