"""A stop text of the caller that ends a tool call before it is complete: the answer was stopped, not broken."""

import pytest

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.testing.clock import FakeClock
from services.inference.app.generation import AnswerStream
from services.inference.core.answers.answer import AnswerForm
from services.inference.core.generation import CandidateEnd, Delta, FinishReason, Started
from services.inference.core.scheduling.branches import Ended, Finished, Progress, Prompted
from tests.unit.inference.test_answer import HERMES

CALL = 'I look. <tool_call>{"name": "clock", "arguments": {"zone'


async def events_of(text, matched_stop, *, is_enforced=False):
    stream = AnswerStream(
        started=Started(ModelInfo("m", 100, ()), 3, 0, 0),
        form=AnswerForm(HERMES, ("clock",), is_enforced),
        candidate_count=1,
        clock=FakeClock(),
        started_s=0.0,
    )
    stream.put(Prompted(1, 0, 0.0))
    stream.put(Progress(1, (0,), text, 5))
    stream.put(Ended(1, 0, FinishReason.STOP, 5, False, matched_stop))
    stream.put(Finished(1, 5, 5, 5))
    return [event async for event in stream.events()]


@pytest.mark.parametrize(("text", "is_enforced"), [(CALL, False), ('{"name": "clo', True), ("", True)])
async def test_a_call_that_a_stop_text_ended_is_left_out_and_the_text_before_it_stays(text, is_enforced):
    events = await events_of(text, "zone", is_enforced=is_enforced)
    (end,) = [event for event in events if isinstance(event, CandidateEnd)]
    assert (end.finish_reason, end.tool_calls, end.matched_stop) == (FinishReason.STOP, (), "zone")
    content = "".join(event.content for event in events if isinstance(event, Delta))
    assert content.strip() == text.partition("<tool_call>")[0].partition("{")[0].strip()


@pytest.mark.parametrize("matched_stop", [None, 7])
async def test_a_call_that_the_model_left_incomplete_is_broken(matched_stop):
    with pytest.raises(Internal, match="cannot be read") as broken:
        await events_of(CALL, matched_stop)
    assert broken.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE
