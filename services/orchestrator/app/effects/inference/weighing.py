"""Estimates probabilities by scoring prefixes of an answer: of yes over no, and of an abstention over claims."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import ErrorCategory, PaganticError
from pagantic_common.domain.text.calibration import probability_of
from pagantic_common.domain.text.citations import ABSTENTION_JSON, AFFIRMATION_JSON
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.services import Score
from services.orchestrator.core.conversation.citations import CitedText
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import InferenceOutput
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.run import Run, has_answer_phase

# The two possible prefixes of an answer, up to the first character that differs.
_BEGINNINGS = (ABSTENTION_JSON.removesuffix("}"), AFFIRMATION_JSON)


async def weigh(command: Infer, hints: Hints, beginnings: tuple[str, str], scope: RunScope) -> tuple[float, TokenUsage]:
    """Return the model's log-odds of the first prefix over the second, and the usage.

    Raises PaganticError if scoring fails.
    """
    scores = await scope.services.do(Score(hints, command, beginnings))
    first, second = scores.logprobs
    return first - second, scores.usage


async def weigh_abstention(
    run: Run, command: Infer, output: InferenceOutput, scope: RunScope
) -> tuple[float | None, TokenUsage]:
    """Return the probability of an abstention in place of claims, and the usage.

    The probability is None if it was not requested or if scoring failed, because a scoring error must not lose the
    answer. A request that is stopped meanwhile keeps its streamed text, and its usage is charged.
    """
    if not _is_wanted(run, output):
        return None, TokenUsage()
    scope.inference.said = _as_streamed(output, command)
    try:
        log_odds, usage = await weigh(command, run.request.hints, _BEGINNINGS, scope)
    except PaganticError as error:
        if failure_from(error).category is ErrorCategory.CANCELLATION:
            raise
        scope.inference.said = None
        return None, TokenUsage()
    scope.inference.said = None
    return probability_of(log_odds), usage


def _as_streamed(output: InferenceOutput, command: Infer) -> InferenceOutput:
    if not command.is_streamed:
        return replace(output, content="", reasoning="")
    return replace(output, content=CitedText().feed(output.content))


def _is_wanted(run: Run, output: InferenceOutput) -> bool:
    policy = run.request.output.citations
    if policy is None or not policy.may_abstain or not run.prepared.cited_chunks or output.tool_calls:
        return False
    return not (run.is_in_tool_phase and has_answer_phase(run))
