"""The whole system with the real model: structure, events and codes, never wording."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import grpc
import jsonschema_rs
import pytest
from google.protobuf.json_format import MessageToDict

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc

REQUIRED = message_pb2.ToolChoice(mode=message_pb2.TOOL_CHOICE_MODE_REQUIRED)
SCHEMA = {
    "type": "object",
    "properties": {
        "severity": {"enum": ["low", "high"]},
        "tags": {"type": "array", "items": {"enum": ["disk", "network"]}, "maxItems": 3},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["severity", "tags", "count"],
    "additionalProperties": False,
}


@pytest.fixture
def stub(channel):
    return rpc.OrchestratorServiceStub(channel)


def request(text="Say hello.", mode=execution_pb2.MODE_CHAT, max_tokens=32, **fields):
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    hints = execution_pb2.ExecutionHints(
        max_tokens=max_tokens, temperature=0, seed=1, tool_choice=fields.pop("tool_choice", None)
    )
    return execution_pb2.SystemRequest(mode=mode, messages=[message], hints=hints, **fields)


def structured(schema=None, text="The disk of db-1 is full.", **fields):
    output = contract_pb2.OutputContract(schema_json=json.dumps(schema or SCHEMA))
    return request(text, execution_pb2.MODE_STRUCTURED, max_tokens=100, output=output, **fields)


def test_what_the_system_stores_is_its_users_alone(system):
    kept = [path for path in system.state.rglob("*") if path.is_file()]
    assert {"journal.sqlite3", "context.sqlite3", "orchestrator.log"} <= {path.name for path in kept}
    open_to_others = [path.name for path in kept if path.stat().st_mode & 0o077 and path.suffix != ".pem"]
    assert open_to_others == []


def test_a_chat_gives_text_and_usage(stub):
    response = stub.Execute(request(), timeout=60)
    assert response.content
    assert not response.HasField("error")
    usage = response.token_usage
    assert 0 < usage.output_tokens <= 32
    assert usage.context_tokens == usage.prompt_tokens + usage.output_tokens
    assert usage.tokens_per_second > 0


def test_the_same_seed_over_the_same_cached_prefix_gives_the_same_text(stub):
    # The first run computes the prompt, the others find it cached: another batch shape, and so other logits.
    _, second, third = (stub.Execute(request("Tell a story."), timeout=60).content for _ in range(3))
    assert second == third


def test_a_required_tool_is_called_and_its_timeline_tells_it(stub):
    work = request("What is 17 * 23?", request_id="tool-1", tools=["calculator"], tool_choice=REQUIRED, max_tokens=128)
    response = stub.Execute(work, timeout=60)
    calls = response.tool_calls_made
    assert {call.name for call in calls} == {"calculator"}
    assert "expression" in json.loads(calls[0].arguments_json)
    events = stub.GetTimeline(pb.GetTimelineRequest(request_id="tool-1")).events
    states = [execution_pb2.LifecycleState.Name(e.transition.to_state) for e in events if e.HasField("transition")]
    assert [state.removeprefix("LIFECYCLE_STATE_") for state in states] == ["INIT", "PREPARE", "EXECUTE", "COMPLETE"]
    work_events = [event for event in events if event.layer in ("inference", "tools")]
    actions = [event.action for event in work_events]
    inference, call = ["inference.start", "inference.end"], ["tool.start", "tool.end"]
    assert actions[:6] == [*inference, *call, *inference]
    assert actions[-2:] == inference, "the model may call again, and answers at last"
    assert actions.count("tool.end") == len(calls)
    call_id = calls[0].id
    assert [event.correlation.caused_by for event in work_events[:6]] == [
        "request",
        "request",
        "inference-1",
        "inference-1",
        call_id,
        call_id,
    ]
    assert all(event.HasField("duration") for event in work_events if event.action.endswith(".end"))
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


def test_a_structured_answer_satisfies_its_schema_and_says_how(stub):
    response = stub.Execute(structured(), timeout=60)
    jsonschema_rs.validate(SCHEMA, json.loads(response.structured_output_json))
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED
    assert not response.HasField("confidence"), "a schema judges nothing"


def test_the_model_judges_whether_an_answer_meets_its_intent(stub):
    work = structured(semantic_intent="It tells how severe the incident is.")
    work.retry.max_retries = 0
    response = stub.Execute(work, timeout=60)
    jsonschema_rs.validate(SCHEMA, json.loads(response.structured_output_json))
    semantic = response.validation.stages[5]
    assert semantic.stage == contract_pb2.STAGE_SEMANTIC
    if semantic.outcome == contract_pb2.STAGE_OUTCOME_PASSED:
        assert not response.HasField("error")
    else:
        assert response.error.code == error_pb2.ERROR_CODE_VALIDATION_SEMANTIC_FAILED
    assert 0 <= response.confidence <= 1
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED


def test_without_the_decoder_the_answer_is_checked_and_the_guarantee_says_so(stub):
    work = structured({"type": "object"})
    work.output.decoder_constraint = False
    work.output.strict_validation = False
    work.retry.max_retries = 0
    response = stub.Execute(work, timeout=60)
    assert response.validation.guarantee in (
        contract_pb2.GUARANTEE_VALIDATED,
        contract_pb2.GUARANTEE_REPAIRED,
        contract_pb2.GUARANTEE_PARTIAL,
    )


def test_a_grammar_decides_what_is_said(stub):
    output = contract_pb2.OutputContract(grammar='root ::= "yes" | "no"')
    response = stub.Execute(request("Is water wet?", output=output), timeout=60)
    assert response.content in ("yes", "no")


def test_a_session_is_remembered_and_can_be_deleted(stub):
    for text in ("My name is Ada.", "What is my name?"):
        assert not stub.Execute(request(text, session_id="e2e"), timeout=60).HasField("error")
    session = stub.GetSession(pb.GetSessionRequest(session_id="e2e")).session
    assert [message.role for message in session.messages] == [2, 3, 2, 3]
    stub.DeleteSession(pb.DeleteSessionRequest(session_id="e2e"))
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetSession(pb.GetSessionRequest(session_id="e2e"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_ingested_text_is_retrieved_into_the_turn(system, stub):
    with grpc.insecure_channel(system.address("context")) as channel:
        context = context_service_pb2_grpc.ContextServiceStub(channel)
        document = collection_pb2.Document(source="harbour.txt", content="The harbour closes at nine. " * 20)
        context.Ingest(context_service_pb2.IngestRequest(collection="e2e", documents=[document]))
    policy = policy_pb2.ContextPolicy(
        collection="e2e", max_chunks=2, rerank=policy_pb2.RerankPolicy(scorer="bm25", top_k=1)
    )
    work = request("When does the harbour close?", request_id="context-1", context=policy)
    response = stub.Execute(work, timeout=60)
    assert not response.HasField("error")
    assert response.confidence_source == execution_pb2.CONFIDENCE_SOURCE_RETRIEVAL
    assert response.confidence == 0.4  # of "when does the harbour close"
    events = stub.GetTimeline(pb.GetTimelineRequest(request_id="context-1")).events
    retrieved = next(event for event in events if event.HasField("context_retrieved"))
    assert retrieved.context_retrieved.chunk_count == 1
    assert retrieved.context_retrieved.token_count > 0


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (request(mode=execution_pb2.MODE_STRUCTURED), error_pb2.ERROR_CODE_CONFIG_SCHEMA_REQUIRED),
        (structured({"type": "banana"}), error_pb2.ERROR_CODE_CONFIG_INVALID),
        (request(tools=["hammer"]), error_pb2.ERROR_CODE_TOOL_NOT_FOUND),
        (request("word " * 6000), error_pb2.ERROR_CODE_INFERENCE_CONTEXT_EXCEEDED),
        (
            request(output=contract_pb2.OutputContract(grammar="rootRule ::= 1")),
            error_pb2.ERROR_CODE_CONSTRAINT_GRAMMAR_INVALID,
        ),
        (
            request(output=contract_pb2.OutputContract(grammar_name="none")),
            error_pb2.ERROR_CODE_CONFIG_GRAMMAR_NOT_FOUND,
        ),
    ],
)
def test_what_cannot_be_done_is_a_response_with_its_code(stub, work, code):
    response = stub.Execute(work, timeout=60)
    assert response.error.code == code, MessageToDict(response.error)
    assert response.error.message
    assert not response.error.retryable


def test_a_message_over_the_limit_is_refused_and_the_next_is_served(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Execute(request("x" * (5 * 1024 * 1024)), timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.Execute(request(), timeout=60).content


def test_a_caller_that_cancels_frees_the_model_within_a_second(system, stub):
    call = stub.ExecuteStream(request("Tell a very long story.", max_tokens=2000))
    for event in call:
        if event.HasField("content_delta"):
            break
    call.cancel()
    with grpc.insecure_channel(system.address("inference")) as channel:
        inference = inference_service_pb2_grpc.InferenceServiceStub(channel)
        until = time.monotonic() + 5
        while inference.GetLoad(inference_service_pb2.GetLoadRequest()).running_sequences:
            assert time.monotonic() < until, "the engine still decodes"
            time.sleep(0.02)


def test_cancel_execution_ends_a_running_one(stub):
    work = request("Tell a very long story.", request_id="cancel-1", max_tokens=2000)
    answers = []
    caller = threading.Thread(target=lambda: answers.append(stub.Execute(work, timeout=60)))
    caller.start()
    until = time.monotonic() + 10
    while True:
        try:
            reply = stub.CancelExecution(pb.CancelExecutionRequest(request_id="cancel-1"))
            break
        except grpc.RpcError:
            assert time.monotonic() < until
            time.sleep(0.05)
    caller.join(60)
    assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
    assert answers[0].error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL


def test_a_service_that_dies_is_named_and_used_again_when_it_is_back(system, stub):
    status = json.loads(system.run(sys.executable, "-m", "deploy.local", "status", "--json").stdout)
    services = status["services"] if isinstance(status, dict) else status
    pid = next(service["pid"] for service in services if service["name"] == "constraint")
    os.kill(pid, signal.SIGKILL)
    response = stub.Execute(structured(), timeout=60)
    if response.HasField("error"):  # the supervisor may be faster than we are
        assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_DEPENDENCY_UNAVAILABLE
        assert "constraint" in response.error.message
        assert response.error.retryable
    until = time.monotonic() + 30
    while stub.Execute(structured(), timeout=60).HasField("error"):
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("environment", "code", "wrong"),
    [
        ({"PAGANTIC_INFERENCE_MODEL_PATH": "/no/such/model.gguf"}, 78, "which is not a file"),
        ({"PAGANTIC_INFERENCE_CONTEXT_TOKENS": "many"}, 78, "PAGANTIC_INFERENCE_CONTEXT_TOKENS"),
        ({}, 69, "the port is in use"),
    ],
)
def test_a_service_that_cannot_start_says_why_and_exits(system, environment, code, wrong):
    done = subprocess.run(
        [sys.executable, "-m", "services.inference"],
        env={**system.environment, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr


def test_prometheus_reads_the_load(system):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**system.environment, "PAGANTIC_INFERENCE_PORT": "0", "PAGANTIC_INFERENCE_METRICS_PORT": str(port)}
    service = subprocess.Popen([sys.executable, "-m", "services.inference"], env=environment, stderr=subprocess.PIPE)
    try:
        assert service.stderr is not None
        while b"listening" not in service.stderr.readline():
            assert service.poll() is None
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
    finally:
        service.terminate()
        service.communicate(timeout=30)
    for name in ("queued_requests", "running_sequences", "kv_used_tokens", "output_tokens_total"):
        assert f"pagantic_inference_{name}{{" in text
    assert 'pagantic_inference_cache_config_info{block_size="16",num_gpu_blocks="512"' in text


def test_a_vote_of_five_has_a_winner_and_its_confidence(stub):
    schema = {"type": "object", "properties": {"severity": {"enum": ["low", "high"]}}, "required": ["severity"]}
    work = structured({**schema, "additionalProperties": False})
    work.mode = execution_pb2.MODE_REDUNDANT
    work.hints.ClearField("temperature")
    work.voting.n = 5
    response = stub.Execute(work, timeout=60)
    assert json.loads(response.structured_output_json)["severity"] in {"low", "high"}
    assert len(response.candidates) == 5
    winner = max(candidate.votes for candidate in response.candidates)
    assert response.confidence == winner / 5
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED


def test_a_vote_that_is_decided_stops_early(stub):
    work = structured({"const": {"all": "agree"}})
    work.mode = execution_pb2.MODE_REDUNDANT
    work.voting.n = 5
    work.voting.early_stop = True
    response = stub.Execute(work, timeout=60)
    assert response.confidence >= 3 / 5
    assert json.loads(response.structured_output_json) == {"all": "agree"}


def test_a_plan_of_the_static_planner_runs(stub):
    response = stub.Execute(request(mode=execution_pb2.MODE_PLAN, max_tokens=8), timeout=60)
    assert not response.HasField("error")
    assert [result.kind for result in response.step_results] == ["infer"]
    assert response.content == response.step_results[0].output.content
