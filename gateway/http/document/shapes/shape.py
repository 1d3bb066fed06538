"""The common parts of every shape: the base, and our own part of an answer."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

# The default of a field that some answers do not have.
ABSENT: Any = Field(default_factory=lambda: None)


class AnswerShape(BaseModel):
    """A JSON object of an answer."""

    model_config = ConfigDict(extra="allow")


class Extension(AnswerShape):
    """Fields that an API lacks; `ignored` names the fields of the request without effect."""

    request_id: str
    request_ids: list[str]
    guarantee: str = ABSENT
    violations: list[dict[str, Any]] = ABSENT
    confidence: float = ABSENT
    confidence_source: str = ABSENT
    not_in_sources: float = ABSENT
    seed: int = ABSENT
    citations: list[dict[str, Any]] = ABSENT
    warnings: list[dict[str, Any]] = ABSENT
    candidates: list[dict[str, Any]] = ABSENT
    step_results: list[dict[str, Any]] = ABSENT
    tool_calls_made: list[dict[str, Any]] = ABSENT
    variant: dict[str, Any] = ABSENT
    ignored: list[str] = ABSENT


class IgnoredFields(AnswerShape):
    """The fields of the request that changed nothing."""

    ignored: list[str]


class PromptUsage(AnswerShape):
    """The tokens of a request without output."""

    prompt_tokens: int
    total_tokens: int
