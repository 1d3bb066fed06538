"""The use-case behind Score: how probable continuations of a prompt are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import current_deadline
from services.inference.app.answer_stream import failure_of
from services.inference.app.engine_loop import EngineLoop
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
    """One continuation: its tokens with their log-probabilities, and what of the prompt came from the cache."""

    tokens: tuple[TokenLogprob, ...] = ()
    cached_prompt_tokens: int = 0


async def score_continuations(
    generation: Generation, prompt: ChatPrompt | str, continuations: Sequence[str]
) -> tuple[list[Score], TokenUsage]:
    """Return a score per continuation, in order, and the cost. The prompt is computed once for all of them.

    An empty continuation has no tokens. Raises InvalidRequest for more than 64 continuations, for an empty prompt, and
    (INFERENCE_CONTEXT_EXCEEDED) for one that does not fit into the context window.
    """
    if not 1 <= len(continuations) <= MAX_CONTINUATIONS:
        raise InvalidRequest(f"{len(continuations)} continuations: there must be 1 to {MAX_CONTINUATIONS}")
    tokens = await generation.prompt_tokens(prompt)
    if not tokens:
        raise InvalidRequest("the prompt is empty")
    window = generation.engine.model.context_window
    given = [
        await generation.preparation.tokenize(text, add_special=False, parse_special=False) for text in continuations
    ]
    longest = len(tokens) + max(map(len, given))
    if longest > window:
        raise InvalidRequest(
            f"prompt and continuation have {longest} tokens, the context window {window}: shorten them",
            code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
            details={"prompt_tokens": longest, "context_window": window},
        )
    turns = asyncio.Semaphore(_AT_ONCE)

    async def score(continuation: list[int]) -> Score:
        if not continuation:
            return Score()
        async with turns:
            return await _score(generation.loop, tokens, continuation)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(score(continuation)) for continuation in given]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    scores = [task.result() for task in tasks]
    usage = TokenUsage(
        prompt_tokens=len(tokens) + sum(map(len, given)),
        cached_prompt_tokens=min(one.cached_prompt_tokens for one in scores),
        context_tokens=longest,
        context_window=window,
    )
    return scores, usage


async def _score(loop: EngineLoop, prompt: Sequence[int], continuation: list[int]) -> Score:
    request = DecodeRequest(
        tokens=tuple(prompt),
        output=GivenOutput(loop.engine.vocabulary, continuation),
        draws=(lambda: 0.0,),
        max_tokens=len(continuation),
        deadline=current_deadline(),
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
                done.set_exception(failure_of(event))

    number = loop.submit(request, take)
    try:
        await done
    finally:
        loop.cancel(number)
    return score
