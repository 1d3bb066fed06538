"""Guesses the next tokens of an output from what it has said and read before (prompt lookup decoding).

Theory of operation. An answer that quotes its prompt repeats runs of its tokens. Where the last few tokens occurred
before, what followed them then is drafted, and decoded in the same batch as the last token; the sampler then decides
row by row, so a wrong guess costs its rows and never a wrong token. Whether it pays depends on how often this
sequence's guesses were right and on what rows cost on this machine, and both are measured as it goes.

Source: A. Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MAX_DRAFT_TOKENS = 31
_NGRAM = 4  # tokens that must have occurred before, once a draft was right
_FIRST_NGRAM = 10  # and before that: names and phrases of the prompt come again, and nothing follows from that
_FIRST_SIZE = 6
_FIRST_GUESS = 0.85  # acceptance that a sequence is believed to have before its first draft
_LEARNING = 0.25
_RETRY_TOKENS = 32  # a sequence whose drafts did not pay tries again after so many tokens, then after twice as many


class StepCosts:
    """What steps of so many rows take, learned from the steps themselves; seconds, or any other unit."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def learn(self, rows: int, cost: float) -> None:
        """Take note of a step; the estimate follows slowly, so that one disturbed step does not decide."""
        if rows > 0 and cost > 0:
            before = self._known.get(rows)
            self._known[rows] = cost if before is None else before + min(cost - before, before) * 0.1

    def estimate(self, rows: int) -> float:
        """Return the cost of a step of `rows`, between what is known, or beyond it in proportion; 0 if nothing is."""
        if rows in self._known:
            return self._known[rows]
        below = max((known for known in self._known if known < rows), default=None)
        above = min((known for known in self._known if known > rows), default=None)
        if below is not None and above is not None:
            share = (rows - below) / (above - below)
            return self._known[below] + share * (self._known[above] - self._known[below])
        if below is not None:
            return self._known[below] * (1 + 0.55 * (rows - below) / below)
        return self._known[above] if above is not None else 0.0


class Drafter(Protocol):
    """Guesses what one sequence says next."""

    def draft(self, tokens: Sequence[int], rows: int, limit: int, costs: StepCosts) -> list[int]:
        """Return the tokens to try after `tokens`, at most `limit`; empty when that would not pay.

        Args:
            tokens: All tokens of the sequence; those given before are its beginning.
            rows: Rows of the step without the draft.
            limit: Most tokens to draft, at least 1.
            costs: What steps cost.
        """

    def judge(self, drafted: int, accepted: int) -> None:
        """Learn from how a draft went: the first `accepted` of its tokens were what the sampler picked."""


class PromptLookup:
    """Drafts what followed the last few tokens where they occurred before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self._acceptance = _FIRST_GUESS
        self._silent_until = 0
        self._silence = _RETRY_TOKENS
        self._most = _FIRST_SIZE
        self._needed = _FIRST_NGRAM
        self._learn(tokens)

    def draft(self, tokens: Sequence[int], rows: int, limit: int, costs: StepCosts) -> list[int]:
        """Return the tokens to try after `tokens`; empty when that would not pay."""
        self._learn(tokens)
        if len(tokens) < self._silent_until:
            return []
        start = self._followers.get(tuple(tokens[-_NGRAM:]))
        if start is None or list(tokens[start - self._needed : start]) != list(tokens[-self._needed :]):
            return []
        found = list(tokens[start : start + min(limit, self._most)])
        size = self._paying_size(len(found), rows, costs)
        if not size:
            self._silent_until = len(tokens) + self._silence
            self._silence *= 2
            self._acceptance = _FIRST_GUESS
        return found[:size]

    def judge(self, drafted: int, accepted: int) -> None:
        """Learn from how a draft went: one trial per token up to the first that was refused; sizes double and halve."""
        if accepted == drafted:
            self._most = min(2 * self._most, MAX_DRAFT_TOKENS)
            self._needed = _NGRAM
        else:
            self._most = max(_FIRST_SIZE, self._most // 2)
        for index in range(min(drafted, accepted + 1)):
            self._acceptance += _LEARNING / 2 * ((index < accepted) - self._acceptance)

    def _learn(self, tokens: Sequence[int]) -> None:
        for end in range(max(self._indexed, _NGRAM), len(tokens)):
            self._followers[tuple(tokens[end - _NGRAM : end])] = end
        self._indexed = max(self._indexed, len(tokens))

    def _paying_size(self, most: int, rows: int, costs: StepCosts) -> int:
        """Return the size with the best yield per cost, 0 if none beats decoding without a draft."""
        plain = costs.estimate(rows)
        best, best_cost = 0, 1.0
        expected = 1.0
        chance = 1.0
        for size in range(1, most + 1):
            chance *= self._acceptance
            expected += chance
            # The other rows of the step wait for it: what it costs beyond them is this sequence's own.
            own = (costs.estimate(rows + size) - plain) / (plain / rows) + 1 if plain > 0 else 1 + size / 2
            if own / expected < best_cost:
                best, best_cost = size, own / expected
        return best
