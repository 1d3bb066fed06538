"""Implements Score: computes the log-probabilities of continuations of a prompt, or of each of its endings."""

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

# `Score` holds the log-probabilities of a continuation's tokens; `BranchScores` holds the scores of a branch.
Score = tuple[TokenLogprob, ...]
BranchScores = list[Score]


@dataclass(frozen=True, slots=True)
class _Branch:
    """The tokens of a branch after the prefix that all branches share, and the tokens of the branch's continuations."""

    ending: Sequence[int]
    continuations: Sequence[Sequence[int]]
    tree: ContinuationTree


async def score_continuations(
    generation: Generation, prompt: ChatPrompt | str, continuations: Sequence[str]
) -> tuple[BranchScores, TokenUsage]:
    """Return the score of each continuation, in order, and the usage. The prompt is computed once for all of them.

    The score of an empty continuation is empty. Raises InvalidRequest unless there are 1 to 64 continuations and the
    prompt has tokens. Raises InvalidRequest (INFERENCE_CONTEXT_EXCEEDED) if a continuation does not fit into the
    context window.
    """
    if not 1 <= len(continuations) <= MAX_CONTINUATIONS:
        raise InvalidRequest(f"{len(continuations)} continuations: there must be 1 to {MAX_CONTINUATIONS}")
    tokens = await generation.prompt_tokens(prompt)
    continuation_tokens = await generation.preparation.tokenize_all(continuations)
    branch = _Branch((), continuation_tokens, ContinuationTree(continuation_tokens))
    scores, usage = await _score(generation, tokens, [branch])
    return scores[0], usage


async def score_branches(
    generation: Generation, prompt: ChatPrompt | str, branches: Sequence[ScoreBranch]
) -> tuple[list[BranchScores], TokenUsage]:
    """Return the scores of each branch, in order, and the usage. The common prefix of the branches is computed once.

    Raises InvalidRequest if there are too many branches or continuations, and the errors of `score_continuations`.
    """
    _check_counts(branches)
    tokens, endings = await generation.ending_tokens(prompt, [branch.ending for branch in branches])
    first = endings[0]
    shared = min(common_length(first, other, len(first)) for other in endings)
    tokens += first[:shared]
    texts = list(dict.fromkeys(text for branch in branches for text in branch.continuations))
    tokens_of = dict(zip(texts, await generation.preparation.tokenize_all(texts), strict=True))
    prepared = []
    for branch, ending in zip(branches, endings, strict=True):
        continuation_tokens = [tokens_of[text] for text in branch.continuations]
        prepared.append(_Branch(ending[shared:], continuation_tokens, ContinuationTree(continuation_tokens)))
    return await _score(generation, tokens, prepared)


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
    return [
        [branch.tree.logprobs_of(continuation) for continuation in branch.continuations] for branch in branches
    ], usage


async def _read_all(generation: Generation, prompt: Sequence[int], branches: Sequence[_Branch]) -> int:
    """Run all readings of the branches, and return the number of cached prompt tokens. Raises the first failure.

    The first reading computes the shared prompt. The other readings run concurrently, at most `_AT_ONCE` and at most
    `max_running` at a time.
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
    """Run a reading of a branch, and return the number of cached tokens before the reading.

    Only the first reading uses stored prefixes, because cache hits of later readings do not show that the prompt is
    repeated.
    """
    tokens = (*prompt, *branch.ending)
    kept_tokens = None
    if branch.ending:  # repetition is unlikely, and cells in the cache would slow down every later step
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
    logprobs: list[TokenLogprob] = []
    cached = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(event: SchedulerEvent) -> None:
        nonlocal cached
        match event:
            case Prompted():
                cached = event.cached_prompt_tokens
            case Progress():
                logprobs.extend(event.logprobs)
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
    branch.tree.take(reading, logprobs)
    return cached
