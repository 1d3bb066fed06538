"""Guesses the next tokens of an output from its own earlier tokens and its prompt (prompt lookup decoding).

Theory of operation. An answer that quotes its prompt repeats runs of the prompt's tokens. If the last few tokens
occurred before, the tokens after that occurrence become the draft. The draft is decoded in the same batch as the last
token, and the sampler decides row by row. A wrong guess costs its rows, but never changes the output. Whether drafts
are worthwhile depends on the acceptance of this sequence's earlier drafts and on the cost of rows on this machine. Both
are measured continuously.

Source: A. Saxena, "Prompt Lookup Decoding", 2023; verification as in Y. Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", ICML 2023.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.inference.core.tuning import StepLoad

MAX_DRAFT_TOKENS = 31
_NGRAM = 4  # length of the repeated run, once a draft was right
_FIRST_NGRAM = 10  # length before the first right draft, because names and phrases repeat without a longer repetition
_FIRST_SIZE = 6
_FIRST_GUESS = 0.85  # assumed acceptance before the first draft of a sequence
_LEARNING = 0.25
_MEASURED_STEPS = 8
_RETRY_TOKENS = 32  # pause after a draft that would not be worthwhile; doubles each time


@dataclass(slots=True)
class DraftCount:
    """The numbers of drafted tokens and of drafted tokens that the sampler picked."""

    drafted: int = 0
    accepted: int = 0

    def add(self, drafted: int, accepted: int) -> None:
        """Add the counts of a draft."""
        self.drafted += drafted
        self.accepted += accepted


class StepCosts:
    """The cost of a step in seconds by its number of rows, learned from past steps.

    `load` counts the steps by kind.
    """

    def __init__(self) -> None:
        self.load = StepLoad()
        self._seconds: dict[int, float] = {}
        self._learned: Counter[int] = Counter()

    def learn(self, rows: int, cost: float) -> None:
        """Learn from a step. The estimate changes slowly, so a single disturbed step has little influence."""
        if rows > 0 and cost > 0:
            before = self._seconds.get(rows, cost)
            self._seconds[rows] = before + min(cost - before, before) * 0.1
            self._learned[rows] += 1

    def is_measured(self, rows: int) -> bool:
        """Return whether enough steps of at most `rows` rows were measured, because the first steps are slow."""
        return any(count >= _MEASURED_STEPS for size, count in self._learned.items() if size <= rows)

    def expect(self, rows: int) -> float:
        """Return the measured cost of a step with `rows` rows, or else its upper bound.

        Returns 0 if nothing was measured.
        """
        return self._seconds.get(rows) or self.bound(rows)

    def bound(self, rows: int) -> float:
        """Return an upper bound for the cost of a step with `rows` rows.

        Larger steps cost more, and the cost grows at most in proportion to the rows.
        """
        bounds = [cost * max(1.0, rows / size) for size, cost in self._seconds.items()]
        return min(bounds, default=0.0)

    def estimate(self, rows: int) -> float:
        """Return the cost of a step with `rows` rows, interpolated or extrapolated from measured steps.

        Returns 0 if nothing was measured.
        """
        if rows in self._seconds:
            return self._seconds[rows]
        below = max((size for size in self._seconds if size < rows), default=None)
        above = min((size for size in self._seconds if size > rows), default=None)
        if below is not None and above is not None:
            share = (rows - below) / (above - below)
            return self._seconds[below] + share * (self._seconds[above] - self._seconds[below])
        if below is not None:
            return self._seconds[below] * (1 + 0.55 * (rows - below) / below)
        if above is not None:
            return self._seconds[above]
        return 0.0


class Drafter(Protocol):
    """Guesses the next tokens of one sequence."""

    def draft(self, tokens: Sequence[int], rows: int, limit: int, costs: StepCosts) -> list[int]:
        """Return at most `limit` tokens to try after `tokens`, or an empty list if a draft is not worthwhile.

        Args:
            tokens: All tokens of the sequence. The tokens of earlier calls are a prefix of them.
            rows: The number of rows in the step without the draft.
            limit: The maximum number of tokens to draft, at least 1.
            costs: The costs of steps.
        """

    def judge(self, drafted: int, accepted: int) -> None:
        """Learn from a draft, whose first `accepted` tokens the sampler picked."""


class PromptLookup:
    """Drafts the tokens that followed the last earlier occurrence of the last few tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self._acceptance = _FIRST_GUESS
        self._paused_until = 0
        self._pause_tokens = _RETRY_TOKENS
        self._max_size = _FIRST_SIZE
        self._needed = _FIRST_NGRAM
        self._learn(tokens)

    def draft(self, tokens: Sequence[int], rows: int, limit: int, costs: StepCosts) -> list[int]:
        """Return the tokens to try after `tokens`, or an empty list if a draft is not worthwhile."""
        self._learn(tokens)
        if len(tokens) < self._paused_until:
            return []
        start = self._followers.get(tuple(tokens[-_NGRAM:]))
        if start is None or list(tokens[start - self._needed : start]) != list(tokens[-self._needed :]):
            return []
        draft = list(tokens[start : start + min(limit, self._max_size)])
        size = self._paying_size(len(draft), rows, costs)
        if not size:
            self._paused_until = len(tokens) + self._pause_tokens
            self._pause_tokens *= 2
            self._acceptance = _FIRST_GUESS
        return draft[:size]

    def judge(self, drafted: int, accepted: int) -> None:
        """Learn from a draft. Each token up to the first rejected token counts as one trial.

        The maximum draft size doubles or halves.
        """
        if accepted == drafted:
            self._max_size = min(2 * self._max_size, MAX_DRAFT_TOKENS)
            self._needed = _NGRAM
        else:
            self._max_size = max(_FIRST_SIZE, self._max_size // 2)
        for index in range(min(drafted, accepted + 1)):
            self._acceptance += _LEARNING / 2 * ((index < accepted) - self._acceptance)

    def _learn(self, tokens: Sequence[int]) -> None:
        for end in range(max(self._indexed, _NGRAM), len(tokens)):
            self._followers[tuple(tokens[end - _NGRAM : end])] = end
        self._indexed = max(self._indexed, len(tokens))

    def _paying_size(self, max_size: int, rows: int, costs: StepCosts) -> int:
        """Return the draft size with the best yield per cost, or 0 if no draft is faster than plain decoding."""
        plain = costs.estimate(rows)
        best, best_cost = 0, 1.0
        expected = 1.0
        chance = 1.0
        for size in range(1, max_size + 1):
            chance *= self._acceptance
            expected += chance
            # This sequence is charged for the whole addition to the step, because all other rows wait for the draft.
            own = 1 + size / 2
            if plain > 0:
                own = (costs.estimate(rows + size) - plain) / (plain / rows) + 1
            if own / expected < best_cost:
                best, best_cost = size, own / expected
        return best
