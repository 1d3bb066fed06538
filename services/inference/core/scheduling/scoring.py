"""Scores given text by drafting all its tokens at once, so that their rows share one batch.

Theory of operation. The continuations of a prompt form a tree of prefixes. A row of logits after a prefix holds the
probabilities of all next tokens, so any number of one-token labels costs one row. A `Reading` is a path through the
tree. Each prefix that has a continuation is read by exactly one reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.inference.core.decoding.output import Row, Step, Vocabulary
from services.inference.core.decoding.sampling import Logits, certain, log_probabilities
from services.inference.core.generation import FinishReason, TokenLogprob
from services.inference.core.scheduling.drafting import StepCosts


class _Prefix:
    """A prefix of continuations, with the prefixes one token longer and the log-probabilities read after it."""

    __slots__ = ("longer", "read")

    def __init__(self) -> None:
        self.longer: dict[int, _Prefix] = {}
        self.read: dict[int, TokenLogprob] = {}


@dataclass(frozen=True, slots=True)
class Reading:
    """A path of tokens.

    `wanted` lists the tokens whose log-probabilities are read before each path token and after the last path token.
    """

    path: tuple[int, ...]
    wanted: tuple[tuple[int, ...], ...]


class ContinuationTree:
    """The continuations of one prompt, as tokens. An empty continuation needs no reading."""

    def __init__(self, continuations: Iterable[Sequence[int]]) -> None:
        self._root = _Prefix()
        for tokens in continuations:
            prefix = self._root
            for token in tokens:
                prefix = prefix.longer.setdefault(token, _Prefix())
        self.readings = self._read_all()

    def take(self, reading: Reading, logprobs: Sequence[TokenLogprob]) -> None:
        """Store the log-probabilities of a reading, in the order of its wanted tokens."""
        prefix, remaining_logprobs = self._root, iter(logprobs)
        for position, targets in enumerate(reading.wanted):
            for token in targets:
                prefix.read[token] = next(remaining_logprobs)
            if position < len(reading.path):
                prefix = prefix.longer[reading.path[position]]

    def logprobs_of(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """Return the log-probability of each token of a continuation. Call this after all readings."""
        prefix, logprobs = self._root, list[TokenLogprob]()
        for token in tokens:
            logprobs.append(prefix.read[token])
            prefix = prefix.longer[token]
        return tuple(logprobs)

    def _read_all(self) -> tuple[Reading, ...]:
        """Return readings that together cover each token after each prefix once."""
        readings: list[Reading] = []
        open_prefixes: list[tuple[tuple[int, ...], _Prefix]] = [((), self._root)] if self._root.longer else []
        while open_prefixes:
            tokens, prefix = open_prefixes.pop()
            path = list(tokens)
            targets: list[tuple[int, ...]] = [()] * len(path)
            while prefix.longer:
                targets.append(tuple(prefix.longer))
                longer = [token for token, other in prefix.longer.items() if other.longer]
                if not longer:
                    break
                open_prefixes += [((*path, token), prefix.longer[token]) for token in longer[1:]]
                path.append(longer[0])
                prefix = prefix.longer[longer[0]]
            readings.append(Reading(tuple(path), tuple(targets)))
        return tuple(readings)


class GivenOutput:
    """An output that follows a reading's path and reports the log-probabilities of the wanted tokens."""

    is_random = False
    constraint_satisfied = False
    matched_stop: str | int | None = None

    def __init__(self, vocabulary: Vocabulary, reading: Reading) -> None:
        self._vocabulary = vocabulary
        self._reading = reading
        self.output_tokens = 0

    def fork(self) -> GivenOutput:
        """Return an independent copy of this output with the same tokens so far."""
        other = GivenOutput(self._vocabulary, self._reading)
        other.output_tokens = self.output_tokens
        return other

    def rank(self, logits: Logits) -> Row:
        """Return the next token of the path as the only choice. After the path, return any wanted token."""
        path, targets = self._reading.path, self._reading.wanted[self.output_tokens]
        following = (*path[self.output_tokens :], *targets)[0]
        logprobs = None
        if targets:
            logprobs = log_probabilities(logits)
        return Row(certain(following), logprobs)

    def accept(self, token: int, row: Row) -> Step:
        """Advance along the path by one token."""
        logprobs: tuple[TokenLogprob, ...] = ()
        if row.log_probabilities is not None:
            logprobs = tuple(
                TokenLogprob(target, self._vocabulary.piece(target), float(row.log_probabilities[target]))
                for target in self._reading.wanted[self.output_tokens]
            )
        self.output_tokens += 1
        if self.output_tokens > len(self._reading.path):
            return Step((), "", FinishReason.LENGTH, logprobs)
        return Step((token,), "", logprobs=logprobs)


class GivenDraft:
    """Drafts the given tokens after a prompt of `prompt_tokens` tokens."""

    def __init__(self, tokens: Sequence[int], prompt_tokens: int) -> None:
        self._tokens = list(tokens)
        self._prompt_tokens = prompt_tokens

    def draft(self, tokens: Sequence[int], rows: int, limit: int, costs: StepCosts) -> list[int]:  # noqa: ARG002
        """Return up to `limit` of the known tokens that come next."""
        position = len(tokens) - self._prompt_tokens
        return self._tokens[position : position + limit]

    def judge(self, drafted: int, accepted: int) -> None:
        """Ignore the result, because given tokens are always accepted."""
