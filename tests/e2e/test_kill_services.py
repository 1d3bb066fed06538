"""A service is killed in the middle of a request: the loss is named, nothing is left half done, and all goes on.

Some cases are tried, as each waits for a service to come back, and all of them in a whole run.
"""

from dataclasses import dataclass

import grpc
import pytest

from pagantic.common.v1 import error_pb2
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.examples import sample
from tests.support.killing import wait_until
from tests.support.live_requests import (
    CONTEXT,
    ENDLESS,
    FIND,
    LONG_TALE,
    REQUIRED,
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
    watch,
)

DEADLINE_S = 60.0
LONG = 2000  # tokens: far more than are decoded before the kill
SHORT = 24

LOST = ("ORCHESTRATION_DEPENDENCY_UNAVAILABLE", "ORCHESTRATION_FAILURE", True)
TOOL_LOST = ("TOOL_UNAVAILABLE", "TOOL_FAILURE", True)  # the calculator is idempotent
GOES_ON = None


def is_preparing(event):
    return event.transition.to_state == execution_pb2.LIFECYCLE_STATE_PREPARE


@dataclass(frozen=True)
class Case:
    """A service, the request that it is killed in, when, and what is told then.

    With `stop_at` the service is stopped at an earlier event, so that a call of it is not answered when it dies.
    """

    area: str
    work: execution_pb2.SystemRequest
    kill_at: object
    failure: tuple | None
    stop_at: object = None
    steps: tuple = ()  # those that had ended well

    @property
    def name(self):
        return f"{self.area}-{execution_pb2.Mode.Name(self.work.mode).removeprefix('MODE_')}"


IN_CALL = {"kill_at": is_action("tool.start"), "stop_at": is_action("inference.start")}
IN_VOTE = is_action("inference.start")
WITH_TOOLS = {"tools": ["calculator"], "tool_choice": REQUIRED}

CASES = [
    Case("inference", chat(max_tokens=LONG, logit_bias=ENDLESS), is_text, LOST),
    Case("inference", structured(max_tokens=LONG, schema=LONG_TALE), is_text, LOST),
    Case("inference", plan(max_tokens=LONG, logit_bias=ENDLESS), is_text, LOST, steps=("find",)),
    Case("inference", redundant(max_tokens=LONG, schema=LONG_TALE), IN_VOTE, LOST),
    Case("inference", redundant(), is_action("vote.cast"), GOES_ON),
    Case("constraint", chat(), is_text, GOES_ON),
    Case("constraint", structured(), is_text, LOST),
    Case("constraint", plan(max_tokens=SHORT), is_text, LOST, steps=("find", "tell", "sum")),
    Case("constraint", redundant(), IN_VOTE, LOST),
    Case("tools", chat(), failure=GOES_ON, **IN_CALL),
    Case("tools", structured(**WITH_TOOLS), failure=GOES_ON, **IN_CALL),
    Case("tools", plan(max_tokens=SHORT), is_action("tool.start"), TOOL_LOST, stop_at=is_text, steps=("find", "tell")),
    Case("context", chat(), is_preparing, GOES_ON, stop_at="before"),
    Case("context", structured(context=CONTEXT), is_preparing, GOES_ON, stop_at="before"),
    Case("context", plan(max_tokens=SHORT), is_action("step.start"), LOST, stop_at="before"),
    Case("context", redundant(context=CONTEXT), is_preparing, GOES_ON, stop_at="before"),
]


@pytest.fixture(scope="module")
def stub(mortal):
    with grpc.insecure_channel(mortal.address("orchestrator")) as channel:
        yield rpc.OrchestratorServiceStub(channel)


@pytest.fixture(autouse=True)
def back(stub, processes):
    yield
    processes.wait_until_whole()
    # A plan reaches every service: what one test has killed, the orchestrator uses again before the next.
    wait_until(lambda: not stub.Execute(plan(max_tokens=1)).HasField("error"), "a plan succeeds")


def wait_until_decoding(system):
    with grpc.insecure_channel(system.address("inference")) as channel:
        inference = inference_service_pb2_grpc.InferenceServiceStub(channel)
        load = inference_service_pb2.GetLoadRequest()
        wait_until(lambda: inference.GetLoad(load).running_sequences, "decoding", poll_s=0.005)


def run(case, stub, processes, kill):
    def strike():
        if case.kill_at is IN_VOTE:
            wait_until_decoding(processes.system)
        kill(case.area)

    deeds = [(case.kill_at, strike)]
    if case.stop_at == "before":
        processes.stop(case.area)
    elif case.stop_at is not None:
        deeds.insert(0, (case.stop_at, lambda: processes.stop(case.area)))
    work = again(case.work)
    return work, watch(stub, work, *deeds)


def check_failure(case, response):
    code, category, retryable = case.failure
    error = response.error
    assert error_pb2.ErrorCode.Name(error.code) == f"ERROR_CODE_{code}", error
    assert error_pb2.ErrorCategory.Name(error.category) == f"ERROR_CATEGORY_{category}"
    assert error.retryable == retryable
    assert case.area in error.message
    assert tuple(result.name for result in response.step_results if not result.HasField("error")) == case.steps


def check_what_goes_on(case, response):
    assert not response.HasField("error"), response.error
    assert response.content
    if case.area == "tools":
        (call,) = response.tool_calls_made
        assert call.is_error
        assert call.error_code == error_pb2.ERROR_CODE_TOOL_UNAVAILABLE


def check_told(case, events):
    """The event that tells of the loss says so."""
    found = [event for event in events if event.action in {"context.retrieved", "tool.end", "inference.end"}]
    if case.area == "context" and case.failure is GOES_ON:
        assert [event.HasField("error") for event in found if event.layer == "context"] == [True]
    if case.area == "tools":
        failed = [event for event in found if event.layer == "tools"]
        assert {event.error.code for event in failed} == {error_pb2.ERROR_CODE_TOOL_UNAVAILABLE}


@pytest.mark.sampled
@pytest.mark.parametrize("case", sample(CASES, 16), ids=lambda case: case.name)
def test_a_killed_service_is_named_or_done_without_and_used_again_when_it_is_back(case, stub, processes):
    before = processes.pids()
    with processes.holding() as kill:
        work, told = run(case, stub, processes, kill)
    assert told.took_s <= DEADLINE_S + 1
    check = check_what_goes_on if case.failure is GOES_ON else check_failure
    check(case, told.response)
    check_told(case, check_ended(stub, work.request_id))
    turns = int(not told.response.HasField("error"))
    if work.session_id:
        check_turns(stub, work.session_id, turns)
    processes.wait_until_whole()
    check_works_again(case, stub, turns)
    after = processes.pids()
    assert {area for area in before if before[area] != after[area]} == {case.area}


def check_works_again(case, stub, turns):
    """The same request succeeds; the orchestrator may need a moment to find that the service is back."""
    responses = []

    def succeeds():
        work = again(case.work)
        work.hints.max_tokens = min(work.hints.max_tokens, 160)
        responses.append(stub.Execute(work, timeout=DEADLINE_S))
        return not responses[-1].HasField("error") and not any(call.is_error for call in responses[-1].tool_calls_made)

    wait_until(succeeds, f"{case.name} works again")
    if case.work.session_id:
        check_turns(stub, case.work.session_id, turns + sum(not response.HasField("error") for response in responses))


def test_a_plan_whose_retries_last_until_inference_is_back_completes(stub, processes):
    work = plan(FIND, TELL, max_tokens=SHORT)
    work.retry.max_retries = 10
    work.retry.backoff.FromMilliseconds(2000)
    told = watch(stub, work, (is_text, lambda: processes.kill("inference")))
    assert not told.response.HasField("error"), told.response.error
    assert told.took_s <= DEADLINE_S + 1
    events = check_ended(stub, work.request_id)
    find, tell = told.response.step_results
    assert find.attempts == 1
    # An inference that is lost amid its text begins again by itself, within its attempt, while the service comes back.
    assert 1 <= tell.attempts <= 11
    assert [event.action for event in events].count("attempt.discarded") >= max(1, tell.attempts - 1)
    assert told.response.content == tell.output.content


@pytest.mark.whole
def test_retries_of_what_is_lost_end_at_the_deadline(stub, processes):
    work = plan(FIND, TELL, max_tokens=LONG, timeout_s=4)
    work.retry.max_retries = 10
    work.retry.backoff.FromMilliseconds(1000)
    with processes.holding() as kill:
        told = watch(stub, work, (is_text, lambda: kill("inference")))
    assert told.took_s <= 4 + 1
    assert told.code == "CANCELLED_TIMEOUT"
    assert [result.name for result in told.response.step_results if not result.HasField("error")] == ["find"]
    check_ended(stub, work.request_id)


def test_what_does_not_answer_and_does_not_die_ends_at_the_deadline(stub, processes):
    processes.stop("inference")
    try:
        work = chat(timeout_s=2)
        told = watch(stub, work)
    finally:
        processes.kill("inference")
    assert told.took_s <= 2 + 1
    assert told.code == "CANCELLED_TIMEOUT"
    check_ended(stub, work.request_id)
    check_turns(stub, work.session_id, 0)
