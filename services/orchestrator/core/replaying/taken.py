"""What a replay has from the record of an execution.

Theory of operation. A replay is an execution of its own, whose machine begins as any other. As long as its position is
below that of the first step that runs again, the record answers the machine's commands, and nothing is called. Calls of
tools are answered one by one, so that guards read their results as they read those of other calls: a call of a taken
answer by its id, any other one by its arguments. Of a plan, the results of steps are taken to which nothing leads that
runs again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import JsonTextError
from services.orchestrator.core.execution.commands import Command, Prepare, RunPlan, RunTools
from services.orchestrator.core.execution.inputs import Input
from services.orchestrator.core.execution.progress import CallEnded, StepEnded
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.voting import canonical_json
from services.orchestrator.core.replaying.steps import RecordedAnswer


@dataclass(frozen=True, slots=True)
class Taken:
    """What a replay takes over.

    Attributes:
        answers: The answers to the machine's first commands, with the names of their steps.
        steps: The results of steps of the plan.
        calls: The calls whose results are given again.
        kept_ids: The ids of those calls that belong to the taken answers.
        seeds: Those of the recorded inferences, as `Record` has them.
        makes_changes: Whether calls that are not among `calls` may change something.
        has_other_prompt: Whether the system prompt is another one.
    """

    answers: tuple[RecordedAnswer, ...]
    steps: tuple[StepEnded, ...] = ()
    calls: tuple[CallEnded, ...] = ()
    kept_ids: frozenset[str] = frozenset()
    seeds: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    makes_changes: bool = False
    has_other_prompt: bool = False

    def step_at(self, position: int) -> str:
        """Return the name of the step that the record answers at a position of the machine; empty for none."""
        if position < len(self.answers):
            return self.answers[position].name
        return ""

    def answer_at(self, position: int, command: Command) -> Input | None:
        """Return the answer to a command; None for one that runs again, or whose parts are answered one by one."""
        if position >= len(self.answers) or isinstance(command, Prepare | RunTools | RunPlan):
            return None
        return self.answers[position].gave

    @property
    def prepared(self) -> Prepared | None:
        """What PREPARE gave, if that is taken over."""
        return next((one.gave for one in self.answers if isinstance(one.gave, Prepared)), None)

    def seed_at(self, step: str, position: int) -> int | None:
        """Return the seed with which a machine asked at a position; None where it did not, or drew none."""
        seeds = self.seeds.get(step, ())
        return seeds[position] if position < len(seeds) else None

    def find_call(self, call: ToolCall, step: str, given: Collection[str]) -> ToolCallRecord | None:
        """Return the record of a call, or of an equal one whose result was not `given` yet, first one of its step.

        A call of a taken answer is known by its id: an approval may have changed its arguments.
        """
        if not step and call.id in self.kept_ids:
            return next(one.record for one in self.calls if one.record.id == call.id)
        left = [
            one
            for one in self.calls
            if one.record.id not in self.kept_ids and one.record.id not in given and _is_equal(one.record, call)
        ]
        left.sort(key=lambda one: (one.record.id != call.id, one.step != step))
        return left[0].record if left else None


def _is_equal(record: ToolCallRecord, call: ToolCall) -> bool:
    """Tell whether a call has the tool and the arguments of a recorded one, in whatever order."""
    if record.name != call.name or record.arguments_json == call.arguments_json:
        return record.name == call.name
    try:
        return canonical_json(record.arguments_json or "{}") == canonical_json(call.arguments_json or "{}")
    except JsonTextError:
        return False
