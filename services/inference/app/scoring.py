"""The use-case behind Score: the log-probabilities of continuations of a prompt, or of several endings of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import current_deadline, current_principal
from services.inference.app.generation import Generation
from services.inference.core.generation import ChatPrompt, ScoreBranch, TokenLogprob
from services.inference.core.scheduling.branches import (
    DecodeRequest,
    Failed,
    Finished,
    Progress,
    Prompted,
    SchedulerEvent,
)
from services.inference.core.scheduling.parked_prefixes import common_length
from services.inference.core.scheduling.scoring import ContinuationTree, GivenDraft, GivenOutput, Reading

MAX_CONTINUATIONS = 64
MAX_BRANCHES = 400
MAX_BRANCH_CONTINUATIONS = 256
MAX_BRANCHES_CONTINUATIONS = 8192
_AT_ONCE = 16

# The log-probabilities of a continuation's tokens, and those of the continuations of each branch.
Score = tuple[TokenLogprob, ...]
BranchScores = list[Score]


@dataclass(frozen=True, slots=True)
class _Branch:
    """The tokens of a branch after what all branches begin with, and those of its continuations."""

    ending: Sequence[int]
    continuations: Sequence[Sequence[int]]
    tree: ContinuationTree


async def score_continuations(
    generation: Generation, prompt: ChatPrompt | str, continuations: Sequence[str]
) -> tuple[BranchScores, TokenUsage]:
    """Return a score per continuation, in order, and the usage. The prompt is computed once for all of them.

    An empty continuation has no tokens. Raises InvalidRequest for more than 64 continuations, for an empty prompt, and
    (INFERENCE_CONTEXT_EXCEEDED) for a continuation that does not fit into the context window.
    """
    if not 1 <= len(continuations) <= MAX_CONTINUATIONS:
        raise InvalidRequest(f"{len(continuations)} continuations: there must be 1 to {MAX_CONTINUATIONS}")
    tokens = await generation.prompt_tokens(prompt)
    given = await generation.preparation.tokenize_all(continuations)
    branch = _Branch((), given, ContinuationTree(given))
    scores, usage = await _score(generation, tokens, [branch])
    return scores[0], usage


async def score_branches(
    generation: Generation, prompt: ChatPrompt | str, branches: Sequence[ScoreBranch]
) -> tuple[list[BranchScores], TokenUsage]:
    """Return the scores of each branch, in order, and the usage. What the branches begin with is computed once.

    Raises InvalidRequest for too many branches or continuations, and what `score_continuations` raises.
    """
    _check_counts(branches)
    tokens, endings = await generation.ending_tokens(prompt, [branch.ending for branch in branches])
    alike = _common_length(endings)
    tokens += endings[0][:alike]
    texts = list(dict.fromkeys(text for branch in branches for text in branch.continuations))
    known = dict(zip(texts, await generation.preparation.tokenize_all(texts), strict=True))
    prepared = []
    for branch, ending in zip(branches, endings, strict=True):
        given = [known[text] for text in branch.continuations]
        prepared.append(_Branch(ending[alike:], given, ContinuationTree(given)))
    return await _score(generation, tokens, prepared)


def _common_length(endings: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all endings have in common at their beginning."""
    first = endings[0]
    return min(common_length(first, other, len(first)) for other in endings)


def _check_counts(branches: Sequence[ScoreBranch]) -> None:
    if not 1 <= len(branches) <= MAX_BRANCHES:
        raise InvalidRequest(f"{len(branches)} branches: there must be 1 to {MAX_BRANCHES}")
    counts = [len(branch.continuations) for branch in branches]
    if not (min(counts) >= 1 and max(counts) <= MAX_BRANCH_CONTINUATIONS):
        raise InvalidRequest(
            f"a branch has {min(counts) and max(counts)} continuations: it must have 1 to {MAX_BRANCH_CONTINUATIONS}"
        )
    if sum(counts) > MAX_BRANCHES_CONTINUATIONS:
        raise InvalidRequest(
            f"the branches have {sum(counts)} continuations together, at most {MAX_BRANCHES_CONTINUATIONS} are taken: "
            "send them in several requests"
        )


async def _score(
    generation: Generation, prompt: Sequence[int], branches: Sequence[_Branch]
) -> tuple[list[BranchScores], TokenUsage]:
    if not all(len(prompt) + len(branch.ending) for branch in branches):
        raise InvalidRequest("the prompt is empty")
    window = generation.engine.model.context_window
    longest = len(prompt) + max(len(branch.ending) + max(map(len, branch.continuations)) for branch in branches)
    if longest > window:
        raise InvalidRequest(
            f"prompt and continuation have {longest} tokens, the context window {window}: shorten them",
            code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
            details={"prompt_tokens": longest, "context_window": window},
        )
    cached = await _read_all(generation, prompt, branches)
    read = sum(len(branch.ending) + sum(len(reading.path) for reading in branch.tree.readings) for branch in branches)
    usage = TokenUsage(
        prompt_tokens=len(prompt) + read,
        cached_prompt_tokens=min(cached, len(prompt)),
        context_tokens=longest,
        context_window=window,
    )
    return [[branch.tree.logprobs_of(given) for given in branch.continuations] for branch in branches], usage


async def _read_all(generation: Generation, prompt: Sequence[int], branches: Sequence[_Branch]) -> int:
    """Read all that the branches want, and return how much of the prompt the cache had; raises the first failure.

    The first reading computes what all branches share. Of the others, as many are read at the same time as may run, at
    most `_AT_ONCE`.
    """
    readings = [(branch, reading) for branch in branches for reading in branch.tree.readings]
    if not readings:
        return 0
    cached = await _read(generation, prompt, *readings[0], is_first=True)
    turns = asyncio.Semaphore(min(_AT_ONCE, generation.loop.scheduler.limits.max_running))

    async def read(branch: _Branch, reading: Reading) -> None:
        async with turns:
            await _read(generation, prompt, branch, reading)

    try:
        async with asyncio.TaskGroup() as group:
            for branch, reading in readings[1:]:
                group.create_task(read(branch, reading))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return cached


async def _read(
    generation: Generation, prompt: Sequence[int], branch: _Branch, reading: Reading, *, is_first: bool = False
) -> int:
    """Let a branch take a reading, and return how many tokens before it the cache had.

    Only the first reading uses stored prefixes: that the others find its prompt does not mean that it comes again.
    """
    tokens = (*prompt, *branch.ending)
    kept_tokens = None
    if branch.ending:  # nobody else is likely to ask it, and the cells that it leaves slow every later step down
        kept_tokens = len(prompt)
    request = DecodeRequest(
        tokens=tokens,
        output=GivenOutput(generation.engine.vocabulary, reading),
        draws=(lambda: 0.0,),
        max_tokens=len(reading.path) + 1,
        deadline=current_deadline(),
        tenant=current_principal().tenant,
        shared_tokens=generation.shared_length(tokens),
        drafter=GivenDraft(reading.path, len(tokens)),
        kept_tokens=kept_tokens,
    )
    found: list[TokenLogprob] = []
    cached = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(event: SchedulerEvent) -> None:
        nonlocal cached
        match event:
            case Prompted():
                cached = event.cached_prompt_tokens
            case Progress():
                found.extend(event.logprobs)
            case Finished() if not done.done():
                done.set_result(None)
            case Failed() if not done.done():
                done.set_exception(event.to_error())

    if is_first:
        number = await generation.submission.submit(request, take)
    else:
        number = generation.loop.submit(request, take)
    try:
        await done
    finally:
        generation.loop.cancel(number)
    branch.tree.take(reading, found)
    return cached
