"""A whole answer and its stream have the same text, usage and reason in every API, and a failure the same status."""

import random
from dataclasses import replace

import anthropic.types
import ollama
import pytest
from pydantic import TypeAdapter

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, Overloaded
from pagantic_common.domain.messages import ToolCall
from services.orchestrator.core.model.response import FinishReason
from tests.support.examples import examples
from tests.support.openai_document import as_documented, problems_of
from tests.support.scripted_services import ScriptedConstraint, ScriptedInference, answer, scripted_services
from tests.support.whole_and_stream import PATHS, SCHEMA, WITH_TOOLS, body_of, data_of, said_of

CLOCK = ToolCall("c1", "clock", "{}")
OPENING = ToolCall("c2", "open_door", '{"door": 1}')
OPEN_DOOR = {"type": "function", "function": {"name": "open_door"}}
TOOLS = {
    "/v1/chat/completions": [OPEN_DOOR],
    "/api/chat": [OPEN_DOOR],
    "/v1/responses": [{"type": "function", "name": "open_door"}],
    "/v1/messages": [{"name": "open_door", "input_schema": {"type": "object"}}],
}
TEXTS = ("hello", "hello there, and more", "[1", '{"a": 1}', "a\u2028b\u2029 c\x85", " spaced  out ", "ü")
REPAIRED = {"[1": "[1]", "{'a': 1}": '{"a": 1}'}
FAILURES = (
    InvalidRequest("too long", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED),
    InvalidRequest("no such model", code=ErrorCode.CONFIG_NO_ENGINE, details={"unknown_model": "none"}),
    InvalidRequest("a schema that is none", code=ErrorCode.CONFIG_INVALID),
    Overloaded("full", code=ErrorCode.INFERENCE_OVERLOADED),
    Internal("broken", code=ErrorCode.INFERENCE_ENGINE_ERROR),
)


async def both(server, path, outputs, **fields):
    """Return what a client reads in the whole answer and in the stream, and the response with the stream."""
    told = []
    for stream in (False, True):
        server.inference.outputs = list(outputs)
        response = await server.http.post(path, json=body_of(path, stream=stream, **fields))
        told.append(said_of(path, response, stream=stream))
    return *told, response


@pytest.fixture
async def server(served):
    inference = ScriptedInference()
    constraint = ScriptedConstraint("invalid", repaired=REPAIRED)
    async with served(scripted_services(inference, constraint)) as opened:
        opened.inference = inference
        opened.constraint = constraint
        yield opened


def drawn(draw, path):
    """Return outputs of the model and fields of a request, as random as they can be for a path."""
    fields, outputs = {}, []
    last = answer(draw.choice(TEXTS), reason=draw.choice((FinishReason.STOP, FinishReason.LENGTH)))
    if draw.random() < 0.3:
        last = replace(last, finish_reason=FinishReason.STOP, matched_stop="END")
    if draw.random() < 0.3 and path != "/v1/completions":
        last = replace(last, reasoning=draw.choice(("hm", "well, let me think")))
    kind = draw.choice(("text", "schema", "own tool", "call"))
    if kind == "schema":
        fields["schema"] = SCHEMA
        is_enforced = draw.random() < 0.5
        last = replace(last, content=draw.choice((*TEXTS, "{'a': 1}", "invalid")), constraint_satisfied=is_enforced)
        fields["pagantic"] = {"output": {"strict_validation": draw.random() < 0.5}, "retry": {"max_retries": 0}}
    elif kind == "own tool" and path in WITH_TOOLS:
        outputs.append(answer(draw.choice(("", "Let me look. ")), [CLOCK]))
        fields["pagantic"] = {"tools": ["clock"]}
    elif kind == "call" and path in WITH_TOOLS:
        fields["tools"] = TOOLS[path]
        last = answer(draw.choice(("", "I open it. ")), [OPENING])
    return [*outputs, last], fields


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_has_the_text_usage_and_reason_of_the_whole_answer(server, path):
    draw, repaired = random.Random(path), 0  # noqa: S311 - no secret
    for _ in range(examples(200, 5)):
        outputs, fields = drawn(draw, path)
        whole, streamed, response = await both(server, path, outputs, **fields)
        if "repaired after it was sent" in response.text:
            repaired += 1
            assert (outputs[-1].content in REPAIRED, whole.error) == (True, "")
        elif streamed.status != whole.status:  # The text that fails the contract was sent already.
            assert (streamed.error, outputs[-1].content) == (whole.error, "invalid")
        else:
            assert streamed == whole, (outputs, fields)
    assert repaired < examples(200, 5) / 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.code.value)
async def test_a_failure_before_any_text_has_its_status_in_a_stream_too(server, path, failure):
    whole, streamed, _ = await both(server, path, [failure])
    assert whole.status >= 400
    assert streamed == whole


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_fails_its_schema_is_the_models_fault(server, path):
    retry = {"retry": {"max_retries": 0}}
    server.inference.outputs = [answer("invalid")]
    response = await server.http.post(path, json=body_of(path, stream=False, schema=SCHEMA, pagantic=retry))
    error = response.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert (response.status_code, message) == (500, "the model's answer: is no JSON")
    assert response.headers["x-should-retry"] == "true"


async def test_one_of_two_choices_that_fails_at_once_has_its_status_in_a_stream_too(server):
    whole, streamed, _ = await both(server, "/v1/chat/completions", [FAILURES[0]], n=2)
    assert (whole.status, streamed) == (400, whole)


@pytest.mark.parametrize("path", WITH_TOOLS)
async def test_texts_beside_calls_of_the_deployment_are_in_the_whole_answer_too(server, path):
    outputs = [answer("Let me look. ", [CLOCK]), answer("It is noon.")]
    whole, streamed, _ = await both(server, path, outputs, pagantic={"tools": ["clock"]})
    assert (whole.text, streamed.text) == ("Let me look. It is noon.",) * 2


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_a_limit_cut_is_not_closed(server, path, strict):
    cut = answer("[1", reason=FinishReason.LENGTH)
    extension = {"output": {"strict_validation": strict}, "hints": {"max_tokens": 3}}
    whole, streamed, _ = await both(server, path, [cut], schema=SCHEMA, pagantic=extension)
    assert (whole.status, whole.text, streamed) == (200, "[1", whole)
    assert whole.reason in ("length", "incompletemax_output_tokens", "max_tokens")


@pytest.mark.parametrize("output", [{"schema": SCHEMA}, {"pagantic": {"output": {"grammar": 'root ::= "x"'}}}])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stop_text_in_a_constrained_answer_is_a_stop(server, path, output):
    server.constraint.invalid.add('{"a')
    stopped = replace(answer('{"a'), matched_stop="END")
    whole, streamed, _ = await both(server, path, [stopped], **output)
    assert (whole.status, whole.text, streamed) == (200, '{"a', whole)
    assert whole.reason in ("stop", "completed", "stop_sequenceEND")


@pytest.mark.parametrize("path", PATHS)
async def test_characters_that_break_line_readers_are_escaped(server, path):
    text = 'a\u2028b\u2029c\x85d"\\u2028'
    whole, streamed, response = await both(server, path, [answer(text)])
    assert (whole.text, streamed.text) == (text, text)
    assert all(character not in response.text for character in "\u2028\u2029\x85")


EVENTS = {
    "/v1/chat/completions": "CreateChatCompletionStreamResponse",
    "/v1/completions": "CreateCompletionResponse",
    "/v1/responses": "ResponseStreamEvent",
}
MODELS = {
    "/v1/messages": TypeAdapter(anthropic.types.RawMessageStreamEvent),
    "/api/chat": TypeAdapter(ollama.ChatResponse),
    "/api/generate": TypeAdapter(ollama.GenerateResponse),
}


@pytest.mark.parametrize("path", PATHS)
async def test_every_event_has_the_shape_that_clients_know(server, path):
    draw = random.Random(path)  # noqa: S311 - no secret
    for _ in range(examples(40, 5)):
        outputs, fields = drawn(draw, path)
        server.inference.outputs = outputs
        response = await server.http.post(path, json=body_of(path, stream=True, **fields))
        for event in data_of(response.text) if response.status_code == 200 else ():
            own = {name: value for name, value in event.items() if name != "pagantic"}
            if "error" in own or own.get("type") in ("error", "ping"):
                continue
            if path in MODELS:
                MODELS[path].validate_python(own)
            elif path != "/v1/completions" or not own["choices"] or own["choices"][0]["finish_reason"]:
                assert problems_of(as_documented(own), EVENTS[path]) == [], own


async def test_a_prompt_counts_once_however_many_choices_it_has(server):
    counts = []
    for n in (1, 3):
        server.inference.outputs = [answer("hello")]
        usage = (await server.chat(n=n)).json()["usage"]
        counts.append((usage["prompt_tokens"], usage["completion_tokens"]))
    assert counts == [(10, 3), (10, 9)]


PREDICATE = {"type": "predicate", "name": "angry", "instructions": "The writer is angry."}
NAMES_NO_MODEL = [
    *((path, body_of(path, stream=False)) for path in PATHS if not path.startswith("/api/")),
    ("/v1/embeddings", {"model": "", "input": "hi"}),
    ("/rerank", {"model": "", "query": "hi", "documents": ["hi"]}),
    ("/v1/decisions", {"model": "", "input": "hi", "questions": [PREDICATE]}),
]


@pytest.mark.parametrize(("path", "body"), NAMES_NO_MODEL, ids=[path for path, _ in NAMES_NO_MODEL])
async def test_the_model_that_an_answer_names_is_listed_and_may_be_sent_back(server, path, body):
    server.inference.outputs = [answer("hello")]
    named = (await server.http.post(path, json=body)).json()["model"]
    listed = [model["id"] for model in (await server.http.get("/v1/models")).json()["data"]]
    again = await server.http.post(path, json=body | {"model": named})
    assert named in listed
    assert (again.status_code, again.json()["model"]) == (200, named)


async def test_a_response_keeps_the_name_of_its_model(server):
    server.inference.outputs = [answer("hello")]
    made = (await server.http.post("/v1/responses", json=body_of("/v1/responses", stream=False))).json()
    kept = (await server.http.get(f"/v1/responses/{made['id']}")).json()
    assert (made["model"], kept["model"]) == ("scripted", "scripted")
