"""The end of a candidate on the wire: the stop string that ended it, and whether the decoder held its calls."""

import pytest

from pagantic_common.domain.messages import ToolCall
from services.inference.convert import event_to_proto
from services.inference.core.generation import CandidateEnd, FinishReason


@pytest.mark.parametrize(("stop", "sent"), [(None, ""), ("END", "END"), (5, ""), (0, "")])
def test_the_end_names_the_stop_string_and_no_token(stop, sent):
    end = CandidateEnd(1, FinishReason.STOP, 3, matched_stop=stop)
    assert event_to_proto(end).candidate_end.matched_stop == sent


@pytest.mark.parametrize("calls_held", [True, False])
def test_the_end_says_whether_the_arguments_of_its_calls_were_held(calls_held):
    end = CandidateEnd(0, FinishReason.TOOL, 3, (ToolCall("c1", "clock", "{}"),), calls_held=calls_held)
    assert event_to_proto(end).candidate_end.calls_held is calls_held
