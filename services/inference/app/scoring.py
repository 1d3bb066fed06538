"""The use-case behind Score: the log-probabilities of continuations of a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import current_deadline, current_principal
from services.inference.app.generation import Generation
from services.inference.core.generation import ChatPrompt, TokenLogprob
from services.inference.core.scheduling.branches import (
    DecodeRequest,
    Failed,
    Finished,
    Progress,
    Prompted,
    SchedulerEvent,
)
from services.inference.core.scheduling.scoring import GivenDraft, GivenOutput

MAX_CONTINUATIONS = 64
_AT_ONCE = 8


@dataclass(slots=True)
class Score:
    """One continuation: its tokens with their log-probabilities, and the prompt tokens that the cache had."""

    tokens: tuple[TokenLogprob, ...] = ()
    cached_prompt_tokens: int = 0


async def score_continuations(
    generation: Generation, prompt: ChatPrompt | str, continuations: Sequence[str]
) -> tuple[list[Score], TokenUsage]:
    """Return a score per continuation, in order, and the usage. The prompt is computed once for all of them.

    An empty continuation has no tokens. Raises InvalidRequest for more than 64 continuations, for an empty prompt, and
    (INFERENCE_CONTEXT_EXCEEDED) for a continuation that does not fit into the context window.
    """
    if not 1 <= len(continuations) <= MAX_CONTINUATIONS:
        raise InvalidRequest(f"{len(continuations)} continuations: there must be 1 to {MAX_CONTINUATIONS}")
    tokens = await generation.prompt_tokens(prompt)
    if not tokens:
        raise InvalidRequest("the prompt is empty")
    given = [
        await generation.preparation.tokenize(text, add_special=False, parse_special=False) for text in continuations
    ]
    window = generation.engine.model.context_window
    longest = len(tokens) + max(map(len, given))
    if longest > window:
        raise InvalidRequest(
            f"prompt and continuation have {longest} tokens, the context window {window}: shorten them",
            code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
            details={"prompt_tokens": longest, "context_window": window},
        )
    scores = await _score_all(generation, tokens, given)
    usage = TokenUsage(
        prompt_tokens=len(tokens) + sum(map(len, given)),
        cached_prompt_tokens=min(score.cached_prompt_tokens for score in scores),
        context_tokens=longest,
        context_window=window,
    )
    return scores, usage


async def _score_all(
    generation: Generation, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[Score]:
    """Score continuations, at most `_AT_ONCE` at the same time; raises the first failure."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def score(continuation: Sequence[int]) -> Score:
        if not continuation:
            return Score()
        async with turns:
            return await _score(generation, prompt, continuation)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(score(continuation)) for continuation in continuations]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _score(generation: Generation, prompt: Sequence[int], continuation: Sequence[int]) -> Score:
    request = DecodeRequest(
        tokens=tuple(prompt),
        output=GivenOutput(generation.engine.vocabulary, continuation),
        draws=(lambda: 0.0,),
        max_tokens=len(continuation),
        deadline=current_deadline(),
        tenant=current_principal().tenant,
        shared_tokens=generation.shared_length(prompt),
        drafter=GivenDraft(continuation, len(prompt)),
    )
    score = Score()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(event: SchedulerEvent) -> None:
        match event:
            case Prompted():
                score.cached_prompt_tokens = event.cached_prompt_tokens
            case Progress():
                score.tokens += event.logprobs
            case Finished() if not done.done():
                done.set_result(None)
            case Failed() if not done.done():
                done.set_exception(event.to_error())

    number = generation.loop.submit(request, take)
    try:
        await done
    finally:
        generation.loop.cancel(number)
    return score
