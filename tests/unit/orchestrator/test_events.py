from datetime import UTC, datetime
from random import Random
from typing import get_args

import pytest

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.errors import ErrorCode, failure_of
from services.orchestrator.convert.event import DECODERS, ENCODERS, event_to_proto
from services.orchestrator.core.execution.events import (
    NAME_OF,
    STREAMED,
    Event,
    InferenceEnd,
    Payload,
    Resumed,
    StepEnd,
    StepStart,
    count_idle_resumes,
)
from services.orchestrator.core.model.response import FinishReason
from tests.support.golden_journal import value_of

RESUMED, START = Resumed(), StepStart("a", "infer")
DONE = StepEnd("a", "infer", success=True)
SAID = InferenceEnd(1, 1, FinishReason.STOP, 0)


def event(payload, failure=None):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return Event(CorrelationContext(request_id="r"), 1, moment, "orchestrator", "any", 1, payload, failure=failure)


@pytest.mark.parametrize(
    ("payloads", "count"),
    [
        ([], 0),
        ([RESUMED, START, RESUMED, START, RESUMED], 3),
        ([RESUMED, RESUMED, DONE, RESUMED], 1),
        ([RESUMED, SAID, RESUMED, SAID, RESUMED, SAID], 0),
    ],
)
def test_resumes_count_that_brought_nothing_to_an_end(payloads, count):
    assert count_idle_resumes([event(payload) for payload in payloads]) == count


def test_what_failed_is_no_progress():
    failed = event(SAID, failure_of(ErrorCode.INFERENCE_ENGINE_ERROR, "gone"))
    assert count_idle_resumes([event(RESUMED), failed, event(RESUMED)]) == 2


def test_every_event_has_a_name_of_its_own():
    assert set(NAME_OF) == set(get_args(Payload))
    assert len({name.action for name in NAME_OF.values()}) == len(NAME_OF)


@pytest.mark.parametrize("kind", get_args(Payload), ids=lambda kind: kind.__name__)
def test_every_event_has_a_field_of_its_own_and_can_be_read_again_unless_it_is_text(kind):
    field, _ = ENCODERS[kind]
    payload = value_of(kind, Random(1))  # noqa: S311 - the same each time
    assert event_to_proto(event(payload)).WhichOneof("event") == field
    assert (field in DECODERS) == (kind not in STREAMED)
