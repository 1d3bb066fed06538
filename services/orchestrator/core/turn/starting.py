"""The start of a run: the guards check the request, and its plan or its first inference is prepared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.guards.texts import with_texts
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.kernel.lifecycle import State
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.response_warning import GuardWarnings
from services.orchestrator.core.turn.ending import move
from services.orchestrator.core.turn.planning import start_plan
from services.orchestrator.core.turn.preparing import Prepare
from services.orchestrator.core.turn.run import Outcome, Run


@dataclass(frozen=True, slots=True)
class InputChecked(Answer):
    """The result of the guards for a request that they did not block.

    `texts` contains all texts of the request in order if a guard redacted any of them, and is empty otherwise.
    """

    kind: ClassVar[str] = "InputChecked"

    texts: tuple[str, ...] = ()
    warnings: GuardWarnings = ()
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class CheckInput(AnsweredCommand):
    """The command to have the deployment's guards check the request."""

    answer: ClassVar[type[InputChecked]] = InputChecked

    def after(self, run: Run, checked: InputChecked) -> Outcome:
        """Start the work on the request, with the texts that the guards redacted."""
        request = run.request
        if checked.texts:
            request = with_texts(request, iter(checked.texts))
        return begin_work(replace(run, request=request, warnings=checked.warnings))


def begin_work(run: Run) -> Outcome:
    """Start with the plan in mode PLAN, or otherwise with PREPARE."""
    if run.request.mode is Mode.PLAN:
        return start_plan(run)
    return move(run, State.PREPARE, "no plan is needed", Prepare())
