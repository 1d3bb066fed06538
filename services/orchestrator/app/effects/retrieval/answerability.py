"""Asks the model how probable it is that retrieved chunks have the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.domain.messages import Message, ToolChoice
from pagantic_common.domain.text.fitting import is_too_long
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.weighing import weigh
from services.orchestrator.app.failures import failure_from, is_outage
from services.orchestrator.core.conversation.answerability import YES_OR_NO, answerability_messages
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.commands import Infer
from services.orchestrator.core.model.request import Hints, side_hints
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.retrieval import Answerability


@dataclass(frozen=True, slots=True)
class Weighed:
    """The probability that the chunks have the answer, None where the model could not be asked, and why not."""

    probability: float | None
    warnings: tuple[ResponseWarning, ...] = ()


async def weigh_answerability(
    question: str, context: Message | None, policy: Answerability, hints: Hints, scope: RunScope
) -> Weighed:
    """Return how probable it is that a context has the answer, 0 without one; an answer is not lost for an outage."""
    if context is None:
        await scope.recorder.emit(events.ContextWeighed(policy.min_probability, 0.0), caused_by=scope.cause)
        return Weighed(0.0)
    started_s = scope.clock.monotonic_s()
    command = _command(question, context, hints)
    failed: PaganticError | None = None
    told = events.ContextWeighed(policy.min_probability)
    try:
        log_odds, usage = await weigh(
            command, replace(side_hints(hints), model=policy.model or hints.model), YES_OR_NO, scope
        )
    except PaganticError as error:
        failed = error
    else:
        scope.inference.lost += usage  # PREPARE's answer takes it, or its failure
        told = _weighed(policy, log_odds, usage)
    await scope.recorder.emit(
        told,
        duration_s=scope.clock.monotonic_s() - started_s,
        failure=None if failed is None else failure_from(failed),
        caused_by=scope.cause,
    )
    if failed is None:
        return Weighed(told.probability)
    if not _is_excused(failed):
        raise failed
    text = f"the probability that the context has the answer is not known: {failure_from(failed).message}"
    return Weighed(None, (ResponseWarning("answerability_unavailable", text),))


def _command(question: str, context: Message, hints: Hints) -> Infer:
    return Infer(
        messages=answerability_messages(question, context.content),
        tools=(),
        tool_choice=ToolChoice(),
        engine_text="",
        seed=hints.seed,
        is_streamed=False,
        max_tokens=1,
    )


def _weighed(policy: Answerability, log_odds: float, usage: TokenUsage) -> events.ContextWeighed:
    probability = policy.calibration.probability_of(log_odds)
    return events.ContextWeighed(policy.min_probability, probability, log_odds, usage.prompt_tokens)


def _is_excused(error: PaganticError) -> bool:
    """Tell whether a request goes on without the probability: in an outage, or where the context is too long for it."""
    return is_outage(error) or (isinstance(error, InvalidRequest) and is_too_long(error))
