"""The results that a replay reuses from the record of an execution.

Theory of operation. A replay is a separate execution, and its machine starts like any other. Until the machine reaches
the first step that runs again, the record answers its commands, and no service is called. Tool calls are answered one
by one, so that guards check their results as usual. A call of a reused answer is found by its ID, and any other call by
its arguments. In a plan, the result of a step is reused if the step does not depend on a step that runs again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import JsonTextError
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.progress import CallEnded, StepEnded
from services.orchestrator.core.kernel.command import Answer, Command
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.voting import canonical_json
from services.orchestrator.core.replaying.steps import RecordedAnswer
from services.orchestrator.core.turn.answering import RunTools
from services.orchestrator.core.turn.plan_steps import RunPlan
from services.orchestrator.core.turn.preparing import Prepare


@dataclass(frozen=True, slots=True)
class RecordedAnswers:
    """The results that a replay reuses from a record.

    Attributes:
        answers: The answers to the machine's first commands, with the names of their steps.
        steps: The results of plan steps.
        calls: The calls with reused results.
        kept_ids: The IDs of those calls that belong to the reused answers.
        seeds: The seeds of the recorded inferences, as in `Record`.
        makes_changes: Whether calls outside `calls` may have side effects.
        has_other_prompt: Whether the system prompt differs.
    """

    answers: tuple[RecordedAnswer, ...]
    steps: tuple[StepEnded, ...] = ()
    calls: tuple[CallEnded, ...] = ()
    kept_ids: frozenset[str] = frozenset()
    seeds: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    makes_changes: bool = False
    has_other_prompt: bool = False

    def step_at(self, position: int) -> str:
        """Return the name of the step that the record answers at a position of the machine.

        Returns an empty string if the record has no answer at that position.
        """
        if position < len(self.answers):
            return self.answers[position].name
        return ""

    def answer_at(self, position: int, command: Command) -> Answer | None:
        """Return the answer to a command, or None if the command runs again or its parts are answered one by one."""
        if position >= len(self.answers) or isinstance(command, Prepare | RunTools | RunPlan):
            return None
        return self.answers[position].gave

    @property
    def prepared(self) -> Prepared | None:
        """The recorded result of PREPARE, or None if it is not reused."""
        return next((answer.gave for answer in self.answers if isinstance(answer.gave, Prepared)), None)

    def seed_at(self, step: str, position: int) -> int | None:
        """Return the seed of a machine's inference at a position, or None if there is no inference or no seed."""
        seeds = self.seeds.get(step, ())
        return seeds[position] if position < len(seeds) else None

    def find_call(self, call: ToolCall, step: str, given: Collection[str]) -> ToolCallRecord | None:
        """Return the record of a call, or of an equal call whose ID is not in `given`.

        A call of the same step is preferred. A call of a reused answer is found by its ID, since an approval may have
        changed its arguments.
        """
        if not step and call.id in self.kept_ids:
            return next(entry.record for entry in self.calls if entry.record.id == call.id)
        candidates = [
            entry
            for entry in self.calls
            if entry.record.id not in self.kept_ids and entry.record.id not in given and _is_equal(entry.record, call)
        ]
        candidates.sort(key=lambda entry: (entry.record.id != call.id, entry.step != step))
        return candidates[0].record if candidates else None


def _is_equal(record: ToolCallRecord, call: ToolCall) -> bool:
    """Return whether a call has the same tool and the same arguments as a recorded call.

    The order of the arguments does not matter.
    """
    if record.name != call.name or record.arguments_json == call.arguments_json:
        return record.name == call.name
    try:
        return canonical_json(record.arguments_json or "{}") == canonical_json(call.arguments_json or "{}")
    except JsonTextError:
        return False
