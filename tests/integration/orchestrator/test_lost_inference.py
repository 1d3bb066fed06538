"""An inference changes nothing, so one whose service is lost begins again: unseen before its text, told of after it."""

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import ErrorCode, Unavailable
from pagantic_common.rpc.call import call_stream
from services.orchestrator.core.model.response import InferenceDelta
from tests.support.orchestrator_app import execute, orchestrator, system_request, timeline
from tests.support.scripted_services import USAGE, ScriptedInference, answer, scripted_services

LOST = Unavailable("the inference service cannot be reached")


class LosingInference(ScriptedInference):
    """Gives some text and is lost, as often as it is told to; then it answers."""

    def __init__(self, *losses):
        super().__init__(answer("all of it"))
        self.losses = list(losses)

    async def infer(self, command, hints):
        if self.losses:
            self.commands.append(command)
            yield InferenceDelta(usage=USAGE)
            yield InferenceDelta("a part", usage=USAGE)
            raise self.losses.pop(0)
        async for piece in super().infer(command, hints):
            yield piece


async def test_a_chat_whose_inference_is_lost_in_the_middle_of_its_text_answers_and_tells_what_no_longer_counts(
    tmp_path,
):
    inference = LosingInference(LOST)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        request = system_request(request_id="r")
        events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
        stored = await timeline(stub, "r")
    kinds = [event.WhichOneof("event") for event in events]
    discarded = kinds.index("attempt_discarded")
    assert "cannot be reached" in events[discarded].attempt_discarded.reason
    after = "".join(event.content_delta.text for event in events[discarded:])
    assert after == events[-1].completed.response.content
    assert not events[-1].completed.response.HasField("error")
    ends = [event for event in stored if event.action == "inference.end"]
    assert [bool(event.error.code) for event in ends] == [True, False]


@pytest.mark.parametrize("losses", [(LOST, LOST), (Unavailable("gone", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE),)])
async def test_what_is_lost_again_or_says_that_its_model_is_gone_fails(tmp_path, losses):
    inference = LosingInference(*losses)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, system_request())
    assert response.error.category in (
        error_pb2.ERROR_CATEGORY_ORCHESTRATION_FAILURE,
        error_pb2.ERROR_CATEGORY_INFERENCE_FAILURE,
    )
    assert len(inference.commands) == len(losses)


async def test_text_that_nobody_was_told_begins_again_without_a_word(tmp_path):
    inference = LosingInference(LOST)
    contract = contract_pb2.OutputContract(schema_json="{}")
    request = system_request(request_id="r", mode=execution_pb2.MODE_STRUCTURED, output=contract, tools=["clock"])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, request)
        actions = [event.action for event in await timeline(stub, "r")]
    assert not response.HasField("error")
    assert "attempt.discarded" not in actions
    assert actions.count("inference.start") == 3
