"""Opens spans for an execution, its states and its plan steps, and labels the metrics of its variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.trace import Link, Span

from pagantic_common.domain.errors import Failure
from pagantic_common.telemetry import genai
from pagantic_common.telemetry.genai import Operation
from pagantic_common.telemetry.names import (
    ATTEMPT,
    EXPERIMENT_NAME,
    EXPERIMENT_VARIANT,
    MODE,
    REQUEST_ID,
    STATE,
    STEP_KIND,
    STEP_NAME,
)
from pagantic_common.telemetry.tracing import Attributes, is_recording, note_error, span, trace_scope
from services.orchestrator.core.model.plan import Step
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import ExecutionRecord

UNEXPECTED = "INTERNAL"
_NO_LABELS: Mapping[str, str] = MappingProxyType({})

_labels: ContextVar[Mapping[str, str]] = ContextVar("variant_labels", default=_NO_LABELS)


@contextmanager
def execution_span(trace_id: str, record: ExecutionRecord) -> Iterator[Span]:
    """Run the work inside the span of an execution, which starts a trace with `trace_id` unless that is empty.

    A separate trace is linked to the trace of the call that started the execution.
    """
    caller = trace.get_current_span().get_span_context()
    with trace_scope(trace_id):
        links = []
        if caller.is_valid and not trace.get_current_span().get_span_context().is_valid:
            links.append(Link(caller))
        mode = record.mode.value.lower()
        with span(f"{Operation.INVOKE_WORKFLOW.value} {mode}", _attributes_of(record, mode), links=links) as opened:
            yield opened


def _attributes_of(record: ExecutionRecord, mode: str) -> Attributes:
    attributes = {
        genai.OPERATION_NAME: Operation.INVOKE_WORKFLOW.value,
        genai.WORKFLOW_NAME: mode,
        REQUEST_ID: record.request_id,
        MODE: record.mode.value,
    }
    if record.session_id:
        attributes[genai.CONVERSATION_ID] = record.session_id
    return attributes


@contextmanager
def step_span(step: Step) -> Iterator[Span]:
    """Run the work inside the span of a plan's step."""
    with span(f"step {step.name}", {STEP_NAME: step.name, STEP_KIND: step.kind}) as opened:
        yield opened


def note_failure(failed: Span, failure: Failure | None) -> None:
    """Mark a span with the failure of its work, if any."""
    if failure is not None:
        note_error(failed, failure.code.value if failure.code is not None else UNEXPECTED)


class StateSpans:
    """The spans of a machine's states, of which at most one is open."""

    def __init__(self) -> None:
        self._current: tuple[State, int] | None = None
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def enter(self, state: State, attempt: int) -> None:
        """Open the span of a state of an attempt, and end the span of the previous state."""
        if not is_recording() or self._current == (state, attempt):
            return
        self._opened.close()
        self._current = (state, attempt)
        self._opened.enter_context(span(f"state {state.value}", {STATE: state.value, ATTEMPT: attempt}))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, traceback)


def variant_labels() -> Mapping[str, str]:
    """Return the labels for the variant of the current work, which are empty outside experiments."""
    return _labels.get()


@contextmanager
def variant_scope(opened: Span, request: Request) -> Iterator[None]:
    """Set the variant of a request for the enclosed work.

    A variant named by the caller or taken from a replayed record gets no labels, because it was not chosen at random
    and would bias the comparison.
    """
    variant = request.variant
    labels = _NO_LABELS
    if variant is not None:
        opened.set_attributes({EXPERIMENT_NAME: variant.experiment, EXPERIMENT_VARIANT: variant.variant})
        if request.choice.named is None and request.replay is None:
            labels = {"experiment": variant.experiment, "variant": variant.variant}
    token = _labels.set(labels)
    try:
        yield
    finally:
        _labels.reset(token)
