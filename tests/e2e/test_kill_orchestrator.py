"""The orchestrator is killed in the middle of a request: what had ended is not done again, whoever goes on with it."""

import signal
import uuid
from contextlib import contextmanager

import grpc
import pytest

from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.killing import wait_until
from tests.support.live_requests import (
    CHECK,
    SUM,
    TELL,
    again,
    chat,
    check_ended,
    check_turns,
    is_action,
    is_text,
    plan,
    redundant,
    structured,
    timeline,
    watch,
)
from tests.support.service_process import ServiceProcess

LONG = 300  # tokens
# A model may end an answer after a few words, so that all of it has been sent when the orchestrator is killed.
TRIES = 3


@contextmanager
def connected(address):
    with grpc.insecure_channel(address) as channel:
        yield rpc.OrchestratorServiceStub(channel)


def execution_of(stub, request_id):
    """Return what the journal knows, once the orchestrator is there to tell it."""

    def ask():
        try:
            return stub.GetExecution(pb.GetExecutionRequest(request_id=request_id), timeout=10).execution
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return None
            raise

    return wait_until(ask, "the orchestrator tells what it knows")


def wait_until_ended(stub, request_id):
    return wait_until(lambda: execution_of(stub, request_id).HasField("response"), f"{request_id} has ended")


def killed_plan(stub, kill):
    """Run a plan whose orchestrator dies while its second step is inferred, and return the request."""
    work = plan(SUM, TELL, CHECK, max_tokens=LONG)
    told = watch(stub, work, (is_text, kill))
    assert told.status is grpc.StatusCode.UNAVAILABLE
    assert [event.step_name for event in told.events if event.action == "step.end"] == ["sum"]
    return work


def check_resumed(stub, work):
    """The plan was taken up once, after its first step, and ended as if nothing had happened."""
    events = check_ended(stub, work.request_id)
    actions = [event.action for event in events]
    assert actions.count("execution.resumed") == 1
    assert actions.count("tool.start") == actions.count("tool.end") == 1
    assert [event.step_name for event in events if event.action == "step.end"] == ["sum", "tell", "check"]
    (resumed,) = [event.resumed for event in events if event.HasField("resumed")]
    assert resumed.completed_steps == 1
    execution = execution_of(stub, work.request_id)
    assert not execution.interrupted
    response = execution.response
    assert not response.HasField("error"), response.error
    assert [result.name for result in response.step_results] == ["sum", "tell", "check"]
    assert [call.result for call in response.tool_calls_made] == ["391"]
    assert response.content == "It is said."
    assert response.token_usage.output_tokens == response.step_results[1].output.usage.output_tokens > 0


def test_a_plan_whose_orchestrator_is_killed_is_taken_up_by_the_next_one(mortal, processes):
    with connected(mortal.address("orchestrator")) as stub:
        work = killed_plan(stub, lambda: processes.kill("orchestrator"))
        wait_until_ended(stub, work.request_id)
        check_resumed(stub, work)


@pytest.mark.whole
def test_a_plan_in_postgresql_is_taken_up_by_the_next_orchestrator(mortal, tmp_path, postgres):
    log = tmp_path / "log"
    process = ServiceProcess("orchestrator", mortal, log, journal_url=postgres, instance_id="killed")
    with process, connected(process.address) as stub:
        work = killed_plan(stub, lambda: process.send(signal.SIGKILL))
        process.start()
        wait_until_ended(stub, work.request_id)
        check_resumed(stub, work)


@pytest.mark.whole
def test_a_plan_that_nobody_resumes_is_interrupted_until_its_request_is_sent_again(mortal, tmp_path):
    settings = {"journal_url": f"sqlite:///{tmp_path / 'journal.sqlite3'}", "resume_plans": "false"}
    process = ServiceProcess("orchestrator", mortal, tmp_path / "log", **settings)
    with process, connected(process.address) as stub:
        work = killed_plan(stub, lambda: process.send(signal.SIGKILL))
        process.start()
        assert execution_of(stub, work.request_id).interrupted
        before = timeline(stub, work.request_id)
        told = watch(stub, work)
        assert told.events[len(before)].action == "execution.resumed"
        check_resumed(stub, work)
        assert told.response == execution_of(stub, work.request_id).response


@pytest.mark.parametrize(
    ("work", "moment"),
    [
        (chat(max_tokens=LONG), is_text),
        pytest.param(structured(max_tokens=LONG), is_text, marks=pytest.mark.whole),
        pytest.param(redundant(max_tokens=LONG), is_action("inference.start"), marks=pytest.mark.whole),
    ],
    ids=["CHAT", "STRUCTURED", "REDUNDANT"],
)
def test_a_request_whose_orchestrator_is_killed_completes_when_it_is_sent_again(mortal, processes, work, moment):
    with connected(mortal.address("orchestrator")) as stub:
        for _ in range(TRIES):
            first, work = again(work), again(work)
            first.session_id = work.session_id = str(uuid.uuid4()) if work.session_id else ""
            assert not stub.Execute(first, timeout=100, wait_for_ready=True).HasField("error")
            told = watch(stub, work, (moment, lambda: processes.kill("orchestrator")))
            if told.status is not None:
                break
            processes.wait_until_whole()
        assert told.status is grpc.StatusCode.UNAVAILABLE
        assert execution_of(stub, work.request_id).interrupted
        timeline(stub, work.request_id)
        if work.session_id:
            check_turns(stub, work.session_id, 1)
        processes.wait_until_whole()
        response = stub.Execute(work, timeout=100)
        assert not response.HasField("error"), response.error
        events = check_ended(stub, work.request_id)
        started = [event.tool_call_id for event in events if event.action == "tool.start"]
        assert started == [call.id for call in response.tool_calls_made]
        assert stub.Execute(work, timeout=100) == response
        if work.session_id:
            assert len(started) == 1
            check_turns(stub, work.session_id, 2)
