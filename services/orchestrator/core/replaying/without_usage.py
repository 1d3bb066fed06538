"""Recorded answers without their usage, which a replay does not pay for again."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.execution.inputs import Decided, Enforced, Inferred, Input, Planned, Sampled
from services.orchestrator.core.execution.progress import StepEnded
from services.orchestrator.core.model.prepared import Prepared

_FREE = TokenUsage()


def without_usage(gave: Input) -> Input:
    """Return an answer that cost nothing; PREPARE's has its history in full, and not a conversation's positions."""
    match gave:
        case Prepared():
            return replace(gave, usage=_FREE, history_start=0, history_end=0)
        case Inferred():
            return replace(gave, output=replace(gave.output, usage=_FREE), score_usage=_FREE)
        case Enforced():
            return replace(gave, enforcement=replace(gave.enforcement, judge_usage=_FREE))
        case Sampled():
            replicas = tuple(
                replace(one, enforcement=one.enforcement and replace(one.enforcement, judge_usage=_FREE))
                for one in gave.replicas
            )
            return replace(gave, replicas=replicas, usage=_FREE)
        case Planned() | Decided():
            return replace(gave, usage=_FREE)
        case _:
            return gave


def step_without_usage(ended: StepEnded) -> StepEnded:
    """Return the end of a plan's step that cost nothing."""
    enforcement = ended.enforcement and replace(ended.enforcement, judge_usage=_FREE)
    return StepEnded(replace(ended.result, usage=_FREE), enforcement)
