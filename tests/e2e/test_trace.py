"""One trace of a request over all services, from the HTTP door to the decode step, by OpenTelemetry's conventions."""

import json
import sys
from http import HTTPStatus

import httpx
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.e2e.conftest import System
from tests.support.collector import TRACES, collecting
from tests.support.conventions import REQUIRED, TYPES, known_attributes
from tests.support.gateway_process import serving_gateway
from tests.support.killing import wait_until
from tests.support.live_requests import COLLECTION, ingest
from tests.support.traces import orphans_of, paths_of, read_spans

MODEL = "SmolLM2-135M-Instruct.Q4_1"
FAILED = trace_pb2.Status.STATUS_CODE_ERROR
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLER_ID = "b7ad6b7169203331"
EXECUTE = "pagantic.orchestrator.v1.OrchestratorService/Execute"
INFER = "pagantic.inference.v1.InferenceService/Infer"
DOOR = (
    "http SERVER POST /v1/executions",
    f"http CLIENT {EXECUTE}",
    f"orchestrator SERVER {EXECUTE}",
    "orchestrator INTERNAL invoke_workflow chat",
)
PREPARE = (*DOOR, "orchestrator INTERNAL state PREPARE")
WORK = (*DOOR, "orchestrator INTERNAL state EXECUTE")
INFERENCE = (*WORK, f"orchestrator CLIENT chat {MODEL}", f"orchestrator CLIENT {INFER}", f"inference SERVER {INFER}")
VALIDATION = (
    *DOOR,
    "orchestrator INTERNAL state VALIDATE",
    "orchestrator INTERNAL validate",
    "orchestrator CLIENT pagantic.constraint.v1.ConstraintService/Enforce",
    "constraint SERVER pagantic.constraint.v1.ConstraintService/Enforce",
)
RETRIEVAL = (*PREPARE, "orchestrator CLIENT retrieval live")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
SYSTEM_REQUEST = {
    "mode": "MODE_CHAT",
    "messages": [{"role": "ROLE_USER", "content": "What is 12 times 7?"}],
    "tools": ["calculator"],
    "context": {"collection": COLLECTION, "maxChunks": 1, "rerank": {}},
    "output": {"schemaJson": json.dumps(SCHEMA)},
    "hints": {
        "maxTokens": 64,
        "temperature": 0,
        "seed": 1,
        "model": MODEL,
        "toolChoice": {"mode": "TOOL_CHOICE_MODE_REQUIRED"},
    },
}


class Observed:
    """The spans of one request, and those of the system that answered it."""

    def __init__(self, spans):
        self.all = spans
        self.own = [span for span in spans if span.trace_id == TRACE_ID]
        self.paths = paths_of(self.own, bytes.fromhex(CALLER_ID))


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """What is observed of one request, by a system that ends afterwards."""
    system = System(tmp_path_factory.mktemp("state"))
    with collecting(services=(TRACES,)) as (address, received):
        system.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}"}
        system.run(sys.executable, "-m", "deploy.local", "up")
        try:
            ingest(system.address("context"))
            with serving_gateway(system.environment) as url:
                _send(url)
        finally:
            system.run(sys.executable, "-m", "deploy.local", "down")
        wait_until(lambda: any(span.name == "inference.decode" for span in read_spans(received)), "the spans came")
        return Observed(read_spans(received))


def _send(url):
    headers = {"content-type": "application/json", "traceparent": f"00-{TRACE_ID}-{CALLER_ID}-01"}
    answer = httpx.post(f"{url}/executions", content=json.dumps(SYSTEM_REQUEST), headers=headers, timeout=120)
    assert answer.status_code == HTTPStatus.OK, answer.text
    assert "tool_calls_made" in answer.json(), answer.text


@pytest.mark.parametrize(
    "path",
    [
        (*PREPARE, "orchestrator CLIENT pagantic.tools.v1.ToolService/ListTools"),
        (
            *RETRIEVAL,
            "orchestrator CLIENT pagantic.context.v1.ContextService/Retrieve",
            "context SERVER pagantic.context.v1.ContextService/Retrieve",
        ),
        (
            *RETRIEVAL,
            "orchestrator CLIENT pagantic.rerank.v1.RerankService/Rerank",
            "rerank SERVER pagantic.rerank.v1.RerankService/Rerank",
            "rerank CLIENT pagantic.inference.v1.InferenceService/Embed",
            "inference SERVER pagantic.inference.v1.InferenceService/Embed",
        ),
        (*INFERENCE, "inference INTERNAL inference.queue"),
        (*INFERENCE, "inference INTERNAL inference.prefill"),
        (*INFERENCE, "inference INTERNAL inference.decode"),
        (
            *WORK,
            "orchestrator INTERNAL execute_tool calculator",
            "orchestrator CLIENT pagantic.tools.v1.ToolService/ExecuteToolStream",
            "tools SERVER pagantic.tools.v1.ToolService/ExecuteToolStream",
        ),
        (*VALIDATION, "constraint INTERNAL stage SCHEMA_VALIDATION"),
    ],
    ids=lambda path: path[-1],
)
def test_work_is_below_the_work_that_asked_for_it_from_the_door_on(observed, path):
    assert path in observed.paths, "\n".join(sorted({path[-1] for path in observed.paths}))


def test_every_span_of_the_request_is_in_its_trace_and_below_its_door(observed):
    assert len(observed.paths) == len(observed.own)
    (door,) = orphans_of(observed.all)
    assert door.parent_id.hex() == CALLER_ID
    assert {span.service for span in observed.own} == {
        f"pagantic-{area}" for area in ("http", "orchestrator", "inference", "constraint", "context", "rerank", "tools")
    }


def test_no_span_of_a_request_that_succeeds_has_failed(observed):
    assert [span.name for span in observed.own if span.span.status.code == FAILED] == []


def test_a_span_lies_within_the_time_of_its_parent(observed):
    known = {span.id: span.span for span in observed.own}
    clock_ns = 5_000_000  # spans of phases are laid out by another clock
    # A caller stops reading at the last message: on a busy machine, the end of the call's handler comes later.
    ending_ns = 1_000_000_000
    for span in observed.own:
        parent = known.get(span.parent_id)
        if parent is not None:
            assert span.span.start_time_unix_nano >= parent.start_time_unix_nano - clock_ns, span.name
            # A caller does not wait for the end of a call that it has cancelled.
            if span.attributes.get("rpc.response.status_code") != "CANCELLED":
                assert span.span.end_time_unix_nano <= parent.end_time_unix_nano + ending_ns, span.name


def test_every_attribute_is_one_of_the_conventions_or_our_own(observed):
    used = {name for span in observed.all for name in span.attributes}
    assert used
    assert {name for name in used if not name.startswith("pagantic.")} <= known_attributes()


def test_attributes_have_the_types_of_the_conventions(observed):
    seen = set()
    for span in observed.all:
        for name, value in span.attributes.items():
            if name in TYPES:
                assert isinstance(value, TYPES[name]), (span.name, name, value)
                seen.add(name)
    assert {"gen_ai.response.time_to_first_chunk", "gen_ai.usage.input_tokens"} <= seen


def test_spans_of_model_work_have_what_the_conventions_require(observed):
    operations = set()
    for span in observed.all:
        operation = span.attributes.get("gen_ai.operation.name")
        if operation is not None:
            operations.add(operation)
            kind, names = REQUIRED[operation]
            assert span.kind == kind, span.name
            assert names <= set(span.attributes), span.name
    assert operations == set(REQUIRED)


def test_a_streamed_answer_says_when_its_first_chunk_came(observed):
    chats = [span for span in observed.own if span.name.startswith("chat")]
    assert chats
    for span in chats:
        took_s = (span.span.end_time_unix_nano - span.span.start_time_unix_nano) / 1e9
        assert 0 < span.attributes["gen_ai.response.time_to_first_chunk"] <= took_s


def test_no_span_has_a_word_of_the_request_or_of_the_answer(observed):
    texts = " ".join(str(value) for span in observed.all for value in span.attributes.values())
    assert "12 times 7" not in texts
    assert "sea" not in texts.lower()
