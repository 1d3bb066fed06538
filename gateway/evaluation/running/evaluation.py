"""Sends the cases of a suite, several in parallel, and scores their answers.

1. The id of a case's request is derived from the evaluation and the case. Sending the request again therefore joins
   the running execution or returns the stored response, and work that a kill interrupts is not executed again.
2. A result is stored before its case counts as done. A case with a result is not sent.
3. A failed case is a result. The evaluation stops only if the system is down, rejects the caller, or reports that the
   caller has no budget left.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from gateway.evaluation.running.results import MAX_OUTPUT_CHARS, Result, ResultsFile, StoredScore
from gateway.evaluation.scoring.answer import MISSING, Answer, answer_of
from gateway.evaluation.scoring.scorer import MAX_NOTE_CHARS, Score, Scorer, Subject, score_of
from gateway.evaluation.suite.model import Case, Suite
from gateway.evaluation.suite.requests import Settings, request_of
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AnswerState, AsyncClient
from pagantic_common.client.hints import variant_text
from pagantic_common.domain.backoff import Backoff
from pagantic_common.domain.errors import ErrorCode, Overloaded, PaganticError, Unavailable
from pagantic_common.rpc.status import status_code_of

PATIENCE_S = 60.0  # Maximum time that the system may be unreachable before the evaluation stops.
WAITS = Backoff(first_s=0.5, max_s=10.0)
_ABOUT_THE_CALLER = frozenset(
    {
        ErrorCode.AUTH_MISSING,
        ErrorCode.AUTH_INVALID,
        ErrorCode.AUTH_EXPIRED,
        ErrorCode.QUOTA_BUDGET,
        ErrorCode.QUOTA_STORAGE,
    }
)

OnResult = Callable[[Result], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Evaluating:
    """Evaluates the cases of a suite that have no result yet.

    Args:
        client: A client of the system.
        suite: The cases.
        settings: The command's settings for all cases.
        file: The file for the results, with its header already written.
        retries_failed: Whether failed cases are sent again. The system runs a case again after a retryable failure, and
            returns the stored response for any other failure.
        patience_s: Maximum time that the system may be down.
    """

    client: AsyncClient
    suite: Suite
    settings: Settings
    file: ResultsFile
    retries_failed: bool = False
    patience_s: float = PATIENCE_S

    def pending(self) -> list[Case]:
        """Return the cases without a result and, with `retries_failed`, also cases that failed or lack a score."""
        done = self.file.results.by_case if self.file.results else {}
        if self.retries_failed:
            done = {name: result for name, result in done.items() if not result.is_incomplete}
        return [case for case in self.suite.cases if case.name not in done]

    async def evaluate(self, evaluation_id: str, *, parallel: int, on_result: OnResult) -> None:
        """Evaluate the pending cases, `parallel` at a time. Raises the PaganticError that stops the evaluation."""
        pending = iter(self.pending())
        workers = [asyncio.ensure_future(self._work(pending, evaluation_id, on_result)) for _ in range(parallel)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, pending: Iterator[Case], evaluation_id: str, on_result: OnResult) -> None:
        for case in pending:
            request = request_of(self.suite, case, self.settings, evaluation_id)
            answer = await self._answer_of(request)
            subject = Subject(case.expectation, request, answer, self.client)
            scores = {scorer.label: await self._score_of(scorer, subject) for scorer in self.suite.scorers_of(case)}
            result = result_of(case, request.request_id, answer, scores)
            self.file.append(result)
            on_result(result)

    async def _answer_of(self, request: execution_pb2.SystemRequest) -> Answer:
        try:
            return answer_of(await self._patiently(lambda: self._followed(request)))
        except PaganticError as error:
            _raise_if_general(error)
            return Answer(execution_pb2.SystemResponse(), "", MISSING, error=_code_of(error), error_message=str(error))

    async def _score_of(self, scorer: Scorer, subject: Subject) -> Score:
        try:
            return await self._patiently(lambda: score_of(scorer, subject))
        except PaganticError as error:
            _raise_if_general(error)
            return Score(None, f"{_code_of(error)}: {error}"[:MAX_NOTE_CHARS])

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat the work while the system is unreachable or overloaded, and return its result."""
        until_s = time.monotonic() + self.patience_s
        for failures in itertools.count(1):
            try:
                return await work()
            except (Unavailable, Overloaded) as error:
                wait_s = WAITS.wait_s(failures, stated_s=error.retry_after_s)
                if error.code in _ABOUT_THE_CALLER or time.monotonic() + wait_s > until_s:
                    raise
            await asyncio.sleep(wait_s)
        raise AssertionError("the loop returns or raises")

    async def _followed(self, request: execution_pb2.SystemRequest) -> AnswerState:
        state = AnswerState()
        async with aclosing(self.client.follow_to_end(request, patience_s=self.patience_s)) as events:
            async for event in events:
                state.take(event)
        return state


def result_of(case: Case, request_id: str, answer: Answer, scores: dict[str, Score]) -> Result:
    """Return the result of a case, ready to be stored."""
    usage = answer.response.token_usage
    seed = None
    if answer.response.HasField("effective_seed"):
        seed = answer.response.effective_seed
    return Result(
        case=case.name,
        key=case.key,
        tags=list(case.tags),
        request_id=request_id,
        scores={
            name: StoredScore(value=score.value, note=score.note, confidence=score.confidence)
            for name, score in scores.items()
        },
        output=answer.text[:MAX_OUTPUT_CHARS],
        error=answer.error,
        error_message=answer.error_message,
        model=answer.model,
        variant=variant_text(answer.response.variant),
        seed=seed,
        latency_s=answer.latency_s,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _raise_if_general(error: PaganticError) -> None:
    """Raise the error if every other case would also fail with it."""
    if isinstance(error, Unavailable) or error.code in _ABOUT_THE_CALLER:
        raise error


def _code_of(error: PaganticError) -> str:
    if error.code is not None:
        return error.code.value
    return status_code_of(error).name
