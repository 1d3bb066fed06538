"""Describes recorded steps and comparisons as lines of text."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from gateway.replaying.comparing import ComparedStep, Comparison, Difference
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client.descriptions import error_code_name
from pagantic_common.domain.text.json_text import dump_json

MAX_VALUE_CHARS = 300
MAX_DIFFERENCE_LINES = 40
_NAME_WIDTH = 16


def describe_recorded_step(step: execution_pb2.ExecutionStep) -> str:
    """Return a single line with the name of a step and its result."""
    parts = [
        *(f"calls {call.name} {call.arguments_json} ({call.id})" for call in step.tool_calls),
        *(f"{made.name} ({made.id}) gave {made.result}" for made in step.tool_calls_made),
        *(f"replica {item.replica_index}: {item.content}" for item in step.candidates),
        *(f"step {item.name}" for item in step.plan.steps),
    ]
    if step.HasField("error"):
        parts.append(f"failed: {error_code_name(step.error.code)}")
    gave = "; ".join(parts) or step.content or step.step_result.output.content
    return f"{step.name:<{_NAME_WIDTH}} {_shortened(gave)}".rstrip()


def describe_comparison(compared: Comparison) -> Iterator[str]:
    """Yield the lines of a comparison: its states, its steps with their differences, and its answer."""
    before, after = (" ".join(states) for states in compared.states)
    if compared.has_same_states:
        yield f"{'states':<{_NAME_WIDTH}} same: {after}"
    else:
        yield f"{'states':<{_NAME_WIDTH}} differ: {before} → {after}"
    for step in compared.steps:
        yield from _describe_step(step)
    yield f"{'answer':<{_NAME_WIDTH}} {'differs' if compared.answer else 'same'}"
    for difference in compared.answer:
        yield from _describe_difference(difference)


def _describe_step(step: ComparedStep) -> Iterator[str]:
    verdict = step.verdict.value
    if step.explanation:
        verdict = f"{verdict} ({step.explanation})"
    yield f"{step.name:<{_NAME_WIDTH}} {verdict}"
    for difference in step.results:
        yield from _describe_difference(difference)
    if step.results:
        for figure in step.figures:
            yield f"  {figure.field}: {_text_of(figure.recorded)} → {_text_of(figure.replayed)}"


def _describe_difference(difference: Difference) -> Iterator[str]:
    before, after = _text_of(difference.recorded), _text_of(difference.replayed)
    if "\n" not in before + after:
        yield f"  {difference.field}:"
        yield f"  - {_shortened(before)}"
        yield f"  + {_shortened(after)}"
        return
    yield f"  {difference.field}:"
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))[2:]
    yield from (f"  {_shortened(line)}" for line in lines[:MAX_DIFFERENCE_LINES])
    if len(lines) > MAX_DIFFERENCE_LINES:
        yield f"  … {len(lines) - MAX_DIFFERENCE_LINES} more lines"


def _text_of(value: Any) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else dump_json(value)


def _shortened(text: str) -> str:
    text = " ".join(text.split("\n"))
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
