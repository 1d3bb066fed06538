"""Scores given texts: an output whose tokens are given, drafted as a whole so that its rows share one batch.

Theory of operation. The continuations of a prompt are a tree of their beginnings. A row of logits after a beginning
tells the probabilities of every token that follows it, so labels of one token cost one row, however many there are. A
`Reading` is a path through the tree, and each beginning with a continuation is read by one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.inference.core.decoding.output import Row, Step, Vocabulary
from services.inference.core.decoding.sampling import Logits, certain, log_probabilities
from services.inference.core.generation import FinishReason, TokenLogprob
from services.inference.core.scheduling.drafting import StepCosts


class _Beginning:
    """A beginning of continuations: the beginnings that are one token longer, and what was read after this one."""

    __slots__ = ("longer", "read")

    def __init__(self) -> None:
        self.longer: dict[int, _Beginning] = {}
        self.read: dict[int, TokenLogprob] = {}


@dataclass(frozen=True, slots=True)
class Reading:
    """A path of tokens, and the tokens whose log-probabilities are read before each of them and after the last."""

    path: tuple[int, ...]
    wanted: tuple[tuple[int, ...], ...]


class ContinuationTree:
    """The continuations of one prompt, as tokens; an empty one has nothing to read."""

    def __init__(self, continuations: Iterable[Sequence[int]]) -> None:
        self._root = _Beginning()
        for tokens in continuations:
            beginning = self._root
            for token in tokens:
                beginning = beginning.longer.setdefault(token, _Beginning())
        self.readings = self._read_all()

    def take(self, reading: Reading, logprobs: Sequence[TokenLogprob]) -> None:
        """Keep the log-probabilities that a reading gave, in the order of its wanted tokens."""
        beginning, left = self._root, iter(logprobs)
        for position, wanted in enumerate(reading.wanted):
            for token in wanted:
                beginning.read[token] = next(left)
            if position < len(reading.path):
                beginning = beginning.longer[reading.path[position]]

    def logprobs_of(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """Return the log-probability of each token of a continuation, once all readings are taken."""
        beginning, found = self._root, []
        for token in tokens:
            found.append(beginning.read[token])
            beginning = beginning.longer[token]
        return tuple(found)

    def _read_all(self) -> tuple[Reading, ...]:
        """Return readings that want each token after each beginning once."""
        readings: list[Reading] = []
        begun: list[tuple[tuple[int, ...], _Beginning]] = [((), self._root)] if self._root.longer else []
        while begun:
            known, beginning = begun.pop()
            path = list(known)
            wanted: list[tuple[int, ...]] = [()] * len(path)
            while beginning.longer:
                wanted.append(tuple(beginning.longer))
                longer = [token for token, other in beginning.longer.items() if other.longer]
                if not longer:
                    break
                begun += [((*path, token), beginning.longer[token]) for token in longer[1:]]
                path.append(longer[0])
                beginning = beginning.longer[longer[0]]
            readings.append(Reading(tuple(path), tuple(wanted)))
        return tuple(readings)


class GivenOutput:
    """An output of a reading's path; it reports the log-probabilities of the wanted tokens."""

    is_random = False
    constraint_satisfied = False
    matched_stop: str | int | None = None

    def __init__(self, vocabulary: Vocabulary, reading: Reading) -> None:
        self._vocabulary = vocabulary
        self._reading = reading
        self.output_tokens = 0

    def fork(self) -> GivenOutput:
        """Return an output with the same tokens so far, which continues separately."""
        other = GivenOutput(self._vocabulary, self._reading)
        other.output_tokens = self.output_tokens
        return other

    def rank(self, logits: Logits) -> Row:
        """Return the next token of the path as the only choice; after the path, any wanted one."""
        path, wanted = self._reading.path, self._reading.wanted[self.output_tokens]
        following = (*path[self.output_tokens :], *wanted)[0]
        known = None
        if wanted:
            known = log_probabilities(logits)
        return Row(certain(following), known)

    def accept(self, token: int, row: Row) -> Step:
        """Continue along the path."""
        logprobs: tuple[TokenLogprob, ...] = ()
        if row.log_probabilities is not None:
            logprobs = tuple(
                TokenLogprob(wanted, self._vocabulary.piece(wanted), float(row.log_probabilities[wanted]))
                for wanted in self._reading.wanted[self.output_tokens]
            )
        self.output_tokens += 1
        if self.output_tokens > len(self._reading.path):
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
