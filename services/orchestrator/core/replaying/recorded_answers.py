"""The results that a replay reuses from the record of an execution.

Theory of operation. A replay is a separate execution, and its machine starts normally. Until the machine reaches the
first step that runs again, the record answers its commands, and no service is called. Tool calls are answered one by
one, so that guards check their results as usual. A call of a reused answer is found by its ID, and any other call by
its arguments. In a plan, the result of a step is reused if the step does not depend on a step that runs again. If a
child runs again from one of its steps, it reuses the answers before that step.
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
from services.orchestrator.core.replaying.steps import Answers
from services.orchestrator.core.turn.answering import RunTools
from services.orchestrator.core.turn.plan_steps import RunPlan
from services.orchestrator.core.turn.preparing import Prepare


@dataclass(frozen=True, slots=True)
class RecordedAnswers:
    """The results that a replay reuses from a record.

    Attributes:
        answers: The answers to the first commands of each machine, by its path, with the names of their steps.
        steps: The results of plan steps.
        calls: The calls with reused results.
        kept: The paths and IDs of the calls in the reused answers.
        seeds: The seeds of the recorded inferences, as in `Record`.
        makes_changes: Whether calls outside `calls` may have side effects.
        has_other_prompt: Whether the system prompt differs.
    """

    answers: Mapping[str, Answers]
    steps: tuple[StepEnded, ...] = ()
    calls: tuple[CallEnded, ...] = ()
    kept: frozenset[tuple[str, str]] = frozenset()
    seeds: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    makes_changes: bool = False
    has_other_prompt: bool = False

    def step_at(self, path: str, position: int) -> str:
        """Return the name of the step that the record answers at a position of a machine.

        Returns an empty string if the record has no answer at that position.
        """
        answers = self.answers.get(path, ())
        return answers[position].name if position < len(answers) else ""

    def answer_at(self, path: str, position: int, command: Command) -> Answer | None:
        """Return the answer to a command; None if it runs again, or if its parts are answered one by one."""
        answers = self.answers.get(path, ())
        if position >= len(answers) or isinstance(command, Prepare | RunTools | RunPlan):
            return None
        return answers[position].gave

    def prepared(self, path: str) -> Prepared | None:
        """Return the recorded result of a machine's PREPARE, or None if it is not reused."""
        return next((answer.gave for answer in self.answers.get(path, ()) if isinstance(answer.gave, Prepared)), None)

    def seed_at(self, path: str, position: int) -> int | None:
        """Return the seed of a machine's inference at a position, or None if there is no inference or no seed."""
        seeds = self.seeds.get(path, ())
        return seeds[position] if position < len(seeds) else None

    def find_call(self, call: ToolCall, path: str, given: Collection[str]) -> ToolCallRecord | None:
        """Return the record of a call, or of an equal call whose ID is not in `given`.

        A call of the same machine is preferred. A call of a reused answer is found by its ID, since an approval may
        have changed its arguments.
        """
        if (path, call.id) in self.kept:
            return next(entry.record for entry in self.calls if (entry.path, entry.record.id) == (path, call.id))
        candidates = [
            entry
            for entry in self.calls
            if (entry.path, entry.record.id) not in self.kept
            and entry.record.id not in given
            and _is_equal(entry.record, call)
        ]
        candidates.sort(key=lambda entry: (entry.record.id != call.id, entry.path != path))
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
