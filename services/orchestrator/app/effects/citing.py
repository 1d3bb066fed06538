"""Asks the model how probable it is that the sources do not have the answer."""

from __future__ import annotations

import math

from pagantic_common.domain.errors import ErrorCategory, PaganticError
from pagantic_common.domain.text.citations import ABSTENTION_JSON, AFFIRMATION_JSON
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.execution.commands import Infer
from services.orchestrator.core.execution.phases.asking import has_answer_phase
from services.orchestrator.core.execution.run import Run
from services.orchestrator.core.model.response import InferenceOutput

# The two beginnings that an answer can have, up to the character in which they differ.
_BEGINNINGS = (ABSTENTION_JSON.removesuffix("}"), AFFIRMATION_JSON)


async def weigh_abstention(
    run: Run, command: Infer, output: InferenceOutput, scope: RunScope
) -> tuple[float | None, TokenUsage]:
    """Return the probability of an abstention in place of claims, and the usage.

    The probability is None where the request does not ask for it, and where the model cannot tell: an answer is
    not lost for it.
    """
    if not _is_wanted(run, output):
        return None, TokenUsage()
    try:
        scores = await scope.services.inference.score(command, run.request.hints, _BEGINNINGS)
    except PaganticError as error:
        if failure_from(error).category is ErrorCategory.CANCELLATION:
            raise
        return None, TokenUsage()
    abstention, affirmation = scores.logprobs
    return 1 / (1 + math.exp(min(affirmation - abstention, _MOST_NATS))), scores.usage


_MOST_NATS = 700.0  # the exponential of more overflows


def _is_wanted(run: Run, output: InferenceOutput) -> bool:
    policy = run.request.output.citations
    if policy is None or not policy.may_abstain or not run.prepared.cited_chunks or output.tool_calls:
        return False
    return not (run.is_in_tool_phase and has_answer_phase(run))
