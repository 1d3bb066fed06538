"""PREPARE: resolves the parts of the first inference, or refuses a request whose context probably lacks the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagantic_common.domain.errors import Failure
from services.orchestrator.core.conversation.citations import unquotable_failure
from services.orchestrator.core.conversation.retrieval import refusal_of
from services.orchestrator.core.kernel.command import AnsweredCommand
from services.orchestrator.core.kernel.lifecycle import State
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.answering import infer
from services.orchestrator.core.turn.deciding import decide
from services.orchestrator.core.turn.ending import abstain, fail, move
from services.orchestrator.core.turn.plan_steps import RunPlan
from services.orchestrator.core.turn.run import Outcome, Run
from services.orchestrator.core.turn.voting import sample

PREPARE = "prepare"  # the name of the step


@dataclass(frozen=True, slots=True)
class Prepare(AnsweredCommand):
    """The command to resolve the history, the context, the tools and the constraint."""

    answer: ClassVar[type[Prepared]] = Prepared
    step: ClassVar[str] = PREPARE

    def after(self, run: Run, prepared: Prepared) -> Outcome:
        """Ask for the answer, the replicas, the decisions or the plan's steps, unless the request is refused."""
        run = replace(run, prepared=prepared, is_in_tool_phase=bool(prepared.tools))
        refusal = refusal_of(run.request, prepared.retrieval_confidence)
        if refusal is not None:
            return _refuse(run, refusal)
        failure = unquotable_failure(run.request.output.citations, prepared.cited_chunks)
        if failure is not None:
            return fail(run, failure)
        if run.request.mode is Mode.REDUNDANT:
            return move(run, State.EXECUTE, "prepared", sample(run))
        if run.request.mode is Mode.DECIDE:
            return move(run, State.EXECUTE, "prepared", decide(run))
        if run.plan is not None:
            return move(run, State.EXECUTE, "prepared", RunPlan(run.plan))
        return move(run, State.EXECUTE, "prepared", infer(run))


def _refuse(run: Run, refusal: Failure) -> Outcome:
    """End the run with an abstention if the model was allowed to abstain, or otherwise with the failure."""
    citations = run.request.output.citations
    if citations is None or not citations.may_abstain:
        return fail(run, refusal)
    moved = move(run, State.EXECUTE, "prepared")
    ended = abstain(moved.run, "the context is too unlikely to have the answer")
    return replace(ended, transitions=(*moved.transitions, *ended.transitions))
