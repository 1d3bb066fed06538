"""Scores given text: an output whose tokens are given, drafted as a whole so that its rows share one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.inference.core.decoding.output import Row, Step, Vocabulary, token_logprobs
from services.inference.core.decoding.sampling import Choices, Logits, log_probabilities
from services.inference.core.generation import FinishReason
from services.inference.core.scheduling.drafting import StepCosts

_CERTAIN = np.ones(1)


class GivenOutput:
    """An output of given tokens, at least one; reports the log-probability of each."""

    is_random = False
    constraint_satisfied = False

    def __init__(self, vocabulary: Vocabulary, tokens: Sequence[int], *, top_logprobs: int = 0) -> None:
        self._vocabulary = vocabulary
        self._tokens = tuple(tokens)
        self._top_logprobs = top_logprobs
        self.output_tokens = 0

    def fork(self) -> GivenOutput:
        """Return an output with the same tokens so far, which continues separately."""
        other = GivenOutput(self._vocabulary, self._tokens, top_logprobs=self._top_logprobs)
        other.output_tokens = self.output_tokens
        return other

    def rank(self, logits: Logits) -> Row:
        """Return the next given token as the only choice."""
        choices = Choices(np.array([self._tokens[self.output_tokens]]), _CERTAIN)
        return Row(choices, log_probabilities(logits))

    def accept(self, token: int, row: Row) -> Step:
        """Continue with the given token."""
        self.output_tokens += 1
        logprobs = token_logprobs(self._vocabulary, token, row, self._top_logprobs)
        if self.output_tokens == len(self._tokens):
            return Step((), "", FinishReason.LENGTH, logprobs)
        return Step((token,), "", logprobs=logprobs)


class GivenDraft:
    """Drafts the given tokens after a prompt of `prompt_tokens`."""

    def __init__(self, tokens: Sequence[int], prompt_tokens: int) -> None:
        self._tokens = list(tokens)
        self._prompt_tokens = prompt_tokens

    def draft(self, tokens: Sequence[int], rows: int, limit: int, costs: StepCosts) -> list[int]:  # noqa: ARG002
        """Return the next given tokens, at most `limit`."""
        position = len(tokens) - self._prompt_tokens
        return self._tokens[position : position + limit]

    def judge(self, drafted: int, accepted: int) -> None:
        """Ignore the result: given tokens are always accepted."""
