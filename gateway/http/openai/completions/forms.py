"""The body of requests to `/v1/completions`, as OpenAI's API document describes it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gateway.http.openai.forms import MAX_TOKENS, MAX_TOP_LOGPROBS, AnswerForm


class CompletionForm(AnswerForm):
    """A request of `/v1/completions`. OpenAI's document allows token ids as prompts; they are refused here."""

    prompt: str | list[Any] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def choices_per_prompt(self) -> int:
        """The number of answers for each prompt."""
        return self.n or 1
