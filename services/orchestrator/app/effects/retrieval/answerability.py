"""Asks the model for the probability that retrieved chunks have the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import ToolChoice
from services.orchestrator.app.effects.inference.weighing import weigh
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from, is_excused, optional_failure_from
from services.orchestrator.core.conversation.retrieval import YES_OR_NO, answerability_messages
from services.orchestrator.core.execution import events
from services.orchestrator.core.model.request import Hints, side_hints
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.retrieval import Answerability
from services.orchestrator.core.turn.answering import Infer


@dataclass(frozen=True, slots=True)
class Weighed:
    """The probability that the chunks contain the answer, or None if the model was unavailable, and warnings."""

    probability: float | None
    warnings: tuple[ResponseWarning, ...] = ()


async def weigh_answerability(
    question: str, chunks: Sequence[Chunk], policy: Answerability, hints: Hints, scope: RunScope
) -> Weighed:
    """Return the probability that chunks have the answer, which is 0 without chunks. An outage only adds a warning."""
    if not chunks:
        await scope.recorder.emit(events.ContextWeighed(policy.min_probability, 0.0), caused_by=scope.cause)
        return Weighed(0.0)
    started_s = scope.clock.monotonic_s()
    weighed = events.ContextWeighed(policy.min_probability)
    failed: PaganticError | None = None
    try:
        weighed = await _ask(question, chunks, policy, hints, scope)
    except PaganticError as error:
        failed = error
    await scope.recorder.emit(
        weighed,
        duration_s=scope.clock.monotonic_s() - started_s,
        failure=optional_failure_from(failed),
        caused_by=scope.cause,
    )
    if failed is None:
        return Weighed(weighed.probability)
    if not is_excused(failed):
        raise failed
    text = f"the probability that the context has the answer is not known: {failure_from(failed).message}"
    return Weighed(None, (ResponseWarning("answerability_unavailable", text),))


async def _ask(
    question: str, chunks: Sequence[Chunk], policy: Answerability, hints: Hints, scope: RunScope
) -> events.ContextWeighed:
    command = Infer(
        messages=answerability_messages(question, chunks),
        tools=(),
        tool_choice=ToolChoice(),
        engine_text="",
        seed=hints.seed,
        is_streamed=False,
        max_tokens=1,  # scoring decodes nothing, so the budget must reserve no more
    )
    scoring_hints = replace(side_hints(hints), model=policy.model or hints.model)
    log_odds, usage = await weigh(command, scoring_hints, YES_OR_NO, scope)
    scope.inference.lost += usage  # added to PREPARE's answer or failure
    probability = policy.calibration.probability_of(log_odds)
    return events.ContextWeighed(policy.min_probability, probability, log_odds, usage.prompt_tokens)
