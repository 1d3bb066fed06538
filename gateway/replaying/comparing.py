"""Computes the differences between a recorded execution and its replay, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from google.protobuf import json_format

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client.descriptions import state_name

# These fields are not results but conditions of a step, which explain a different result.
_FIGURES = ("model", "seed", "usage")
_USAGE_FIGURES = ("prompt_tokens", "cached_prompt_tokens", "output_tokens")
# These fields are not compared: names are random and times are measured, so they differ between any two executions.
_DRAWN = frozenset({"id", "tool_call_id", "duration", "usage", "attempts", "created_at"})
_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "model": "another model",
        "seed": "another seed",
        "prompt_tokens": "another prompt",
        "cached_prompt_tokens": "other batch shapes, as the cache had another part of the prompt",
    }
)
ANSWER = "answer"
STATES = "states"


class Verdict(StrEnum):
    """The result of comparing a step of a replay with the recorded step."""

    TAKEN = "from the record"
    SAME = "same"
    DIFFERS = "differs"
    MISSING = "only in the record"
    ADDED = "only in the replay"


@dataclass(frozen=True, slots=True)
class Difference:
    """A field with two different JSON values. None means that the field is unset."""

    field: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A step with its differing results and its differing figures, such as the model and the cached prompt tokens."""

    name: str
    verdict: Verdict
    results: tuple[Difference, ...] = ()
    figures: tuple[Difference, ...] = ()

    @property
    def explanation(self) -> str:
        """The reason that an inference's result differs, or empty for other steps and equal results."""
        if self.verdict is not Verdict.DIFFERS or not self.name.startswith(("infer-", "sample")):
            return ""
        differing = {figure.field for figure in self.figures}
        causes = [words for field, words in _CAUSES.items() if field in differing]
        if not causes:
            return (
                "same prompt length, model and seed: other requests ran beside one of them, drafts had other lengths, "
                "or the engine differs"
            )
        return "; ".join(causes)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An ended execution: its response, its steps and its stored events."""

    response: execution_pb2.SystemResponse
    steps: Sequence[execution_pb2.ExecutionStep]
    events: Sequence[event_pb2.ExecutionEvent]

    @property
    def states(self) -> list[str]:
        """The states of the execution in order."""
        moved = (event.transition for event in self.events if event.HasField("transition"))
        return [state_name(transition.to_state) for transition in moved]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two executions in their states, steps and answers."""

    states: tuple[list[str], list[str]]
    steps: tuple[ComparedStep, ...]
    answer: tuple[Difference, ...]

    @property
    def has_same_states(self) -> bool:
        """Whether both executions passed through the same states."""
        return self.states[0] == self.states[1]

    @property
    def is_same(self) -> bool:
        """Whether the states, the results of all steps and the answer are the same."""
        is_same = all(step.verdict in (Verdict.SAME, Verdict.TAKEN) for step in self.steps)
        return is_same and self.has_same_states and not self.answer

    @property
    def first_difference(self) -> ComparedStep | None:
        """The first step whose result differs, or None if all results are equal."""
        return next((step for step in self.steps if step.verdict not in (Verdict.SAME, Verdict.TAKEN)), None)

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return {
            "same": self.is_same,
            STATES: dict(zip(("recorded", "replayed"), self.states, strict=True)),
            "steps": [
                {
                    "name": step.name,
                    "verdict": step.verdict.value,
                    "results": [_as_json(difference) for difference in step.results],
                    "figures": [_as_json(difference) for difference in step.figures],
                }
                for step in self.steps
            ],
            ANSWER: [_as_json(difference) for difference in self.answer],
        }


def compare(recorded: Recorded, replayed: Recorded) -> Comparison:
    """Compare an execution with its replay. Steps are paired by name."""
    reused_names = {event.step_recorded.name for event in replayed.events if event.HasField("step_recorded")}
    before = {step.name: step for step in recorded.steps}
    after = {step.name: step for step in replayed.steps}
    names = [*after, *(name for name in before if name not in after)]
    steps = tuple(_compare_step(name, before.get(name), after.get(name), name in reused_names) for name in names)
    answer = _differences(_answer_of(recorded.response), _answer_of(replayed.response))
    return Comparison((recorded.states, replayed.states), steps, answer)


def _compare_step(
    name: str,
    before: execution_pb2.ExecutionStep | None,
    after: execution_pb2.ExecutionStep | None,
    is_taken: bool,
) -> ComparedStep:
    if after is None:
        return ComparedStep(name, Verdict.MISSING)
    if before is None:
        return ComparedStep(name, Verdict.ADDED)
    results = _differences(_results_of(before), _results_of(after))
    if is_taken:
        return ComparedStep(name, Verdict.DIFFERS if results else Verdict.TAKEN, results)
    verdict = Verdict.DIFFERS if results else Verdict.SAME
    figures = _differences(_figures_of(before), _figures_of(after))
    paired_figures = tuple(figure for figure in figures if None not in (figure.recorded, figure.replayed))
    return ComparedStep(name, verdict, results, paired_figures)


def _results_of(step: execution_pb2.ExecutionStep) -> Mapping[str, Any]:
    fields = _without_drawn(_fields_of(step))
    return {name: value for name, value in fields.items() if name not in (*_FIGURES, "name")}


def _figures_of(step: execution_pb2.ExecutionStep) -> Mapping[str, Any]:
    fields = _fields_of(step)
    usage = fields.get("usage", {})
    figures = {name: fields[name] for name in ("model", "seed") if name in fields}
    return figures | {name: usage.get(name, 0) for name in _USAGE_FIGURES if usage}


def _answer_of(response: execution_pb2.SystemResponse) -> Mapping[str, Any]:
    answer: dict[str, Any] = {"content": response.content}
    if response.structured_output_json:
        answer = {"structured_output": response.structured_output_json}
    if response.HasField("error"):
        answer["error"] = _fields_of(response.error).get("code", "INTERNAL")
    return answer


def _fields_of(message: Any) -> dict[str, Any]:
    return dict(json_format.MessageToDict(message, preserving_proto_field_name=True))


def _without_drawn(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_drawn(part) for name, part in value.items() if name not in _DRAWN}
    if isinstance(value, list):
        return [_without_drawn(part) for part in value]
    return value


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    names = [*before, *(name for name in after if name not in before)]
    return tuple(
        Difference(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def _as_json(difference: Difference) -> dict[str, Any]:
    return {"field": difference.field, "recorded": difference.recorded, "replayed": difference.replayed}
