"""Tracks the progress of a run's outstanding command, and of the children that carry it out.

Theory of operation. A machine may start other machines, its children. Each machine has a path: "" for the execution's
own machine, and "plan/answer" for the child that runs the step `answer` of its plan. The answers and calls of a child
are stored with its path, in the execution's journal.

Partial results of a command (a tool call, a step of a plan, a replica of a vote) are kept outside the machine. The
recorder adds them when it stores them, and `replay` adds them when it reads them, so the progress is the same after a
crash, a cancellation and a timeout. The answer to the command clears the progress, because the machine then has all
results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.model.plan import StepResult, path_of_step
from services.orchestrator.core.model.response import (
    FinishReason,
    InferenceDelta,
    InferenceOutput,
    ToolCallRecord,
)
from services.orchestrator.core.turn.ending import Failed
from services.orchestrator.core.turn.replicas import Replica
from services.orchestrator.core.turn.run import Run


@dataclass(frozen=True, slots=True)
class CallBegan:
    """The start of a tool call, recorded before the call runs.

    `path` is the machine that makes the call. `effect_id` is the id of its effect, or empty in an old journal.
    """

    call_id: str
    tool: str
    path: str = ""
    effect_id: str = ""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a tool call, with the call's record."""

    record: ToolCallRecord
    path: str = ""


@dataclass(frozen=True, slots=True)
class CallGivenUp:
    """A tool call that was abandoned before its end, and that may have run.

    It is never stored, because a resumed run must not reuse it.
    """

    record: ToolCallRecord
    path: str = ""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The end of a plan's step. `enforcement` is the enforcement of the step's output."""

    result: StepResult
    enforcement: Enforcement | None = None

    @property
    def path(self) -> str:
        """The path of the step."""
        return path_of_step(self.result.name)


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """An answer that the machine of a child received. `number` is the number of the machine's run, from 1."""

    path: str
    number: int
    answer: Answer


StoredProgress = CallBegan | CallEnded | StepEnded | ChildAnswer
Inner = StoredProgress | CallGivenUp


@dataclass(slots=True)
class InferenceProgress:
    """The current inference of one machine, and the usage of earlier inferences that returned no answer.

    The text is kept in pieces and joined when it is read, because joining it after every piece would take time
    quadratic in the length of the answer.

    Attributes:
        lost: The usage of lost or stopped inferences that no input includes.
        calls: The position of each streamed call among the streamed calls, by its position in the turn.
    """

    lost: TokenUsage = TokenUsage()
    calls: dict[int, int] = field(default_factory=dict)
    _said: InferenceOutput | None = None  # The pieces are joined when the output is read.
    _contents: list[str] = field(default_factory=list)
    _reasonings: list[str] = field(default_factory=list)

    @property
    def said(self) -> InferenceOutput | None:
        """The output of the current inference so far, or None if there is no output."""
        if self._said is not None and (self._contents or self._reasonings):
            content = "".join([self._said.content, *self._contents])
            reasoning = "".join([self._said.reasoning, *self._reasonings])
            self.said = replace(self._said, content=content, reasoning=reasoning)
        return self._said

    @said.setter
    def said(self, output: InferenceOutput | None) -> None:
        self._said = output
        self._contents.clear()
        self._reasonings.clear()

    def add(self, delta: InferenceDelta, *, keeps_text: bool = True) -> None:
        """Add the next piece of an inference. If `keeps_text` is False, add only its usage."""
        output = self._said or InferenceOutput("", FinishReason.ERROR, model=delta.model, seed=delta.seed)
        self._said = replace(output, usage=delta.usage)
        if keeps_text and delta.content:
            self._contents.append(delta.content)
        if keeps_text and delta.reasoning:
            self._reasonings.append(delta.reasoning)

    def give_up(self) -> InferenceOutput:
        """Count the current inference as lost, and return its partial output."""
        output = self.said or InferenceOutput("", FinishReason.ERROR)
        self.said = None
        self.lost += output.usage
        self.calls.clear()
        return output

    def charge(self, output: InferenceOutput) -> InferenceOutput:
        """Return an output with the usage of the lost inferences added, and reset their usage."""
        return replace(output, usage=output.usage + self.take_lost())

    def take_lost(self) -> TokenUsage:
        """Return the usage of the lost inferences, and reset it."""
        lost, self.lost = self.lost, TokenUsage()
        return lost

    @property
    def usage(self) -> TokenUsage:
        """The usage of the current inference and of the lost inferences."""
        if self._said is None:
            return self.lost
        return self.lost + self._said.usage


@dataclass(slots=True)
class Progress:
    """The progress of the outstanding command so far.

    Attributes:
        inner: The work that began or ended, in order.
        replicas: The replicas of a vote that ended, by index.
        vote_usage: The usage of the vote's prompt and candidates.
        inferences: The inference of each machine, by its path.
    """

    inner: list[Inner] = field(default_factory=list)
    replicas: dict[int, Replica] = field(default_factory=dict)
    vote_usage: TokenUsage = TokenUsage()
    inferences: dict[str, InferenceProgress] = field(default_factory=dict)

    def add(self, entry: Inner) -> None:
        """Append an entry."""
        self.inner.append(entry)
        if isinstance(entry, ChildAnswer):
            self._end_inference(entry.path, entry.answer)

    def answer(self, happened: Answer) -> None:
        """Reset the progress after the answer to a command.

        The usage of lost inferences is charged to the next command.
        """
        self.inner.clear()
        self.replicas.clear()
        self.vote_usage = TokenUsage()
        self.inferences = {path: inference for path, inference in self.inferences.items() if not path}
        self._end_inference("", happened)

    def _end_inference(self, path: str, happened: Answer) -> None:
        inference = self.inferences.pop(path, None)
        if inference is None or isinstance(happened, Failed):  # A failure already contains this usage.
            return
        if inference.usage != TokenUsage():
            self.inferences[path] = InferenceProgress(lost=inference.usage)

    def inference(self, path: str) -> InferenceProgress:
        """Return the inference of a machine, or a new inference if there is none."""
        return self.inferences.setdefault(path, InferenceProgress())

    @property
    def began(self) -> tuple[CallBegan, ...]:
        """The calls that began. Each of them may have run."""
        return tuple(entry for entry in self.inner if isinstance(entry, CallBegan))

    @property
    def records(self) -> tuple[ToolCallRecord, ...]:
        """The records of the calls that ended or were given up, in this order."""
        return tuple(entry.record for entry in self.inner if isinstance(entry, CallEnded | CallGivenUp))

    @property
    def steps(self) -> tuple[StepEnded, ...]:
        """The steps that ended, in the order in which they ended."""
        return tuple(entry for entry in self.inner if isinstance(entry, StepEnded))

    @property
    def ended_replicas(self) -> tuple[Replica, ...]:
        """The replicas of a vote that ended, in the order of their indexes."""
        return tuple(self.replicas[index] for index in sorted(self.replicas))

    def run_of(self, path: str) -> tuple[int, tuple[Answer, ...]]:
        """Return the number of the last run of a child's machine, and the answers that it received.

        The number is 0 if the machine has not run.
        """
        answers = list(self._answers_of(path))
        number = max((entry.number for entry in answers), default=0)
        return number, tuple(entry.answer for entry in answers if entry.number == number)

    def has_called(self, path: str) -> bool:
        """Return whether a child has begun a tool call that may have run."""
        unknown = {record.id for record in self.records if record.is_unknown_tool}
        return any(call.path == path and call.call_id not in unknown for call in self.began)

    def calls_of(self, path: str, since: int = 0) -> CallProgress:
        """Return the calls of one machine since its last input, without the first `since` entries."""
        own: list[CallBegan | CallEnded] = []
        for entry in self.inner[since:]:
            if isinstance(entry, ChildAnswer) and entry.path == path:
                own.clear()
            if isinstance(entry, CallBegan | CallEnded) and entry.path == path:
                own.append(entry)
        return CallProgress(tuple(own))

    def usage_of_child(self, path: str) -> TokenUsage:
        """Return the total usage of a child over all its runs."""
        inside = sum((entry.answer.total_usage for entry in self._answers_of(path)), TokenUsage())
        inference = self.inferences.get(path, InferenceProgress())
        return inside + inference.usage

    def unended_usage(self) -> TokenUsage:
        """Return the usage of the unfinished children."""
        ended = {entry.path for entry in self.steps}
        begun = {entry.path for entry in self.inner if isinstance(entry, ChildAnswer)}
        begun.update(path for path in self.inferences if path)
        return sum((self.usage_of_child(path) for path in sorted(begun - ended)), TokenUsage())

    def _answers_of(self, path: str) -> Iterator[ChildAnswer]:
        return (entry for entry in self.inner if isinstance(entry, ChildAnswer) and entry.path == path)


@dataclass(frozen=True, slots=True)
class CallProgress:
    """The calls of one machine's outstanding command."""

    calls: tuple[CallBegan | CallEnded, ...] = ()

    @property
    def records(self) -> tuple[ToolCallRecord, ...]:
        """The records of the calls that ended."""
        return tuple(call.record for call in self.calls if isinstance(call, CallEnded))

    def record_of(self, call_id: str) -> ToolCallRecord | None:
        """Return the record of a call, or None if the call has not ended."""
        return next((record for record in self.records if record.id == call_id), None)

    def lost_call(self, tools: Mapping[str, ToolDefinition]) -> CallBegan | None:
        """Return a call that must not run again, or None. The call may have run, and its tool is not idempotent."""
        ended = {record.id for record in self.records}
        open_calls = (call for call in self.calls if isinstance(call, CallBegan) and call.call_id not in ended)
        return next((call for call in open_calls if not _is_idempotent(call, tools)), None)

    def lost(self, call_id: str, tools: Mapping[str, ToolDefinition]) -> CallBegan | None:
        """Return the start of a call that may have run; None if the call may run again or has not begun."""
        began = (call for call in self.calls if isinstance(call, CallBegan) and call.call_id == call_id)
        return next((call for call in began if not _is_idempotent(call, tools)), None)


def _is_idempotent(call: CallBegan, tools: Mapping[str, ToolDefinition]) -> bool:
    return call.tool in tools and tools[call.tool].idempotent


def effect_id_of(key: ExecutionKey, path: str, position: str, args_hash: str) -> str:
    """Return the id of a call's effect: the SHA-256 of these values, as 64 hexadecimal digits.

    `position` is the position of the call in the machine of `path`. So the id is the same in retries, resumes and
    further runs under the same request id, and differs in a replay.
    """
    text = "\n".join([json.dumps([*key, path, position]), args_hash])
    return hashlib.sha256(text.encode()).hexdigest()


def unknown_outcome(tool: str, reason: str) -> Failure:
    """Return the failure of a call that may have had its effect."""
    message = f"the outcome of a call of {tool!r} is unknown, and it may have happened: {reason}"
    return failure_of(ErrorCode.TOOL_OUTCOME_UNKNOWN, message)


def failed_with(run: Run, progress: Progress, failure: Failure, path: str = "") -> Failed:
    """Return the failure of a machine's outstanding command with its partial results and their usage."""
    output = _stopped(progress.inference(path))
    if path:  # The execution itself has the calls of its children.
        return Failed(failure, output=output)
    usage = progress.unended_usage()
    replicas: tuple[Replica, ...] = ()
    if not run.replicas:  # Once the votes are counted, the machine has the replicas.
        replicas = progress.ended_replicas
        usage += progress.vote_usage
    recorded_ids = {record.id for record in run.records}
    return Failed(
        failure,
        records=tuple(record for record in progress.records if record.id not in recorded_ids),
        results=tuple(ended_step.result for ended_step in progress.steps),
        replicas=replicas,
        usage=usage,
        output=output,
    )


def _stopped(inference: InferenceProgress) -> InferenceOutput | None:
    """Return the output of a stopped inference, with the usage of lost inferences.

    Returns None if there is neither output nor usage.
    """
    output = inference.said
    if output is None and inference.lost == TokenUsage():
        return None
    return replace(output or InferenceOutput("", FinishReason.ERROR), usage=inference.usage)
