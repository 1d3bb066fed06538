"""How probable given text is: an output that is told what to say, drafted whole, so that all its rows are one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.inference.core.decoding.output import Output, Row, Step, Vocabulary
from services.inference.core.decoding.sampling import Choices, Logits, log_probabilities
from services.inference.core.generation import FinishReason, Sampling
from services.inference.core.scheduling.drafting import StepCosts

_CERTAIN = np.ones(1)


class GivenOutput(Output):
    """Says `tokens`, at least one, and reports the log-probability of each."""

    def __init__(self, vocabulary: Vocabulary, tokens: Sequence[int], *, top_logprobs: int = 0) -> None:
        super().__init__(
            vocabulary=vocabulary,
            sampling=Sampling(temperature=0.0),
            max_tokens=len(tokens),
            top_logprobs=top_logprobs,
        )
        self._tokens = tuple(tokens)

    def rank(self, logits: Logits) -> Row:
        """Return the given token as the only choice."""
        choices = Choices(np.array([self._tokens[self.output_tokens]]), _CERTAIN)
        return Row(choices, log_probabilities(logits))

    def accept(self, token: int, row: Row) -> Step:
        """Go on with the given token."""
        self.output_tokens += 1
        logprobs = self._logprobs(token, row)
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
        said = len(tokens) - self._prompt_tokens
        return self._tokens[said : said + limit]

    def judge(self, drafted: int, accepted: int) -> None:
        """Nothing is to be learned: what is given is always accepted."""
