"""A caller goes away, or the time is up, in the middle of decoding: decoding stops, and the journal says why."""

import grpc
import pytest

from pagantic.common.v1 import error_pb2
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.killing import wait_until
from tests.support.live_requests import (
    LONG_TALE,
    MANY,
    STORY,
    TELL,
    check_ended,
    check_turns,
    plan,
    redundant,
    request,
    structured,
    watch,
)

LONG = {"schema": LONG_TALE, "max_tokens": MANY}
MODES = {
    "CHAT": lambda **fields: request(STORY, execution_pb2.MODE_CHAT, session_id="left", **LONG, **fields),
    "STRUCTURED": lambda **fields: structured(**LONG, **fields),
    "PLAN": lambda **fields: plan(TELL, **LONG, **fields),
    "REDUNDANT": lambda **fields: redundant(**LONG, **fields),
}
in_each_mode = pytest.mark.parametrize("make", MODES.values(), ids=MODES)


@pytest.fixture
def stub(channel):
    return rpc.OrchestratorServiceStub(channel)


@pytest.fixture
def running_sequences(system):
    with grpc.insecure_channel(system.address("inference")) as channel:
        inference = inference_service_pb2_grpc.InferenceServiceStub(channel)
        yield lambda: inference.GetLoad(inference_service_pb2.GetLoadRequest()).running_sequences


def check_cancelled(stub, running_sequences, request_id, code):
    wait_until(lambda: not running_sequences(), "the engine decodes nothing", within_s=10)

    def ended():
        found = stub.GetExecution(pb.GetExecutionRequest(request_id=request_id)).execution
        return found if found.HasField("response") else None

    execution = wait_until(ended, "the execution has ended", within_s=10)
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
    error = execution.response.error
    assert error_pb2.ErrorCode.Name(error.code) == f"ERROR_CODE_{code}"
    assert error.category == error_pb2.ERROR_CATEGORY_CANCELLATION
    assert not error.retryable
    events = check_ended(stub, request_id)
    assert [event.action for event in events].count("inference.end") == 1
    check_turns(stub, "left", 0)


@in_each_mode
def test_a_caller_that_disconnects_stops_decoding(stub, running_sequences, make):
    work = make()
    call = stub.ExecuteStream(work, timeout=60)
    for event in call:
        if event.action == "inference.start":
            wait_until(running_sequences, "decoding", poll_s=0.005)
            break
    call.cancel()
    check_cancelled(stub, running_sequences, work.request_id, "CANCELLED_SIGNAL")


@in_each_mode
def test_decoding_stops_when_the_requests_time_is_up(stub, running_sequences, make):
    work = make(timeout_s=1.5)
    told = watch(stub, work)
    assert told.took_s <= 1.5 + 1
    assert told.code == "CANCELLED_TIMEOUT"
    check_cancelled(stub, running_sequences, work.request_id, "CANCELLED_TIMEOUT")


def test_decoding_stops_when_the_callers_own_deadline_passes(stub, running_sequences):
    work = MODES["CHAT"]()
    told = watch(stub, work, timeout_s=1.5)
    assert told.status is grpc.StatusCode.DEADLINE_EXCEEDED
    check_cancelled(stub, running_sequences, work.request_id, "CANCELLED_TIMEOUT")
