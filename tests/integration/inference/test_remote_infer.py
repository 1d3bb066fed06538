"""Infer over a remote engine: a real server over a real socket, which answers what the test says."""

import json
import logging

import pytest

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.client import user_message
from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, NotFound
from pagantic_common.domain.images import ESTIMATED_TOKENS, image_of
from pagantic_common.rpc.call import call_stream, call_unary
from services.inference.adapters.remote.transport import ConnectionLimits, open_client
from tests.support.engine_server import (
    DONE,
    Hold,
    call_piece,
    choice,
    ended,
    engine_server,
    spoken,
    usage,
)
from tests.support.remote_app import models_of, remote
from tests.support.sample_images import sample_image

SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}}}'
TOOL = message_pb2.ToolDefinition(
    name="stock", description="Counts.", parameters_json='{"type":"object"}', safety=message_pb2.TOOL_SAFETY_READ
)


@pytest.fixture
async def engine():
    async with engine_server() as served:
        yield served


@pytest.fixture
async def stub(engine, stub_of):
    return await stub_of(models_of({"big": remote(engine.url)}))


def chat(text="hi", tools=(), choice=None, **fields):
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    prompt = generation_pb2.ChatPrompt(messages=[message], tools=tools, tool_choice=choice)
    return pb.InferRequest(chat=prompt, **fields)


async def collect(stub, request, timeout_s=10.0):
    return [event async for event in call_stream("inference", stub.Infer, request, timeout_s)]


def text_of(events, index=0, field="content"):
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    return "".join(getattr(delta, field) for delta in deltas if delta.candidate_index == index)


async def test_an_answer_streams_in_the_order_of_the_contract(engine, stub):
    engine.script = spoken("Grü", "ße")
    events = await collect(stub, chat())
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["started", "delta", "delta", "candidate_end", "completed"]
    assert text_of(events) == "Grüße"
    started, end, completed = events[0].started, events[-2].candidate_end, events[-1].completed
    assert started.model.name == "big"
    assert "remote" in started.model.capabilities
    assert started.prompt_tokens > 0
    assert end.finish_reason == generation_pb2.FINISH_REASON_STOP
    assert end.output_tokens == 7
    assert (completed.usage.prompt_tokens, completed.usage.cached_prompt_tokens) == (11, 3)
    assert (completed.usage.output_tokens, completed.usage.context_tokens) == (7, 18)
    assert completed.usage.context_window == 4096


async def test_only_what_the_caller_set_is_sent(engine, stub):
    events = await collect(stub, chat("hi"))
    path, headers, body = engine.asked[0]
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "org/Big",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": events[0].started.seed,
        "max_tokens": 2048,
    }
    assert headers["user-agent"] == "pagantic"
    assert not [name for name in headers if name.startswith(("x-", "openai", "authorization"))]


async def test_an_adapters_own_headers_are_sent_and_no_others(engine):
    limits = ConnectionLimits(max_connections=1, connect_timeout_s=5.0, silence_s=5.0, max_answer_bytes=4096)
    headers = {"x-api-key": "sk-secret", "api-version": "2026-01-01"}
    async with open_client(limits, "", "", headers) as client:
        await client.post(f"{engine.url}/embeddings", json={}, headers={"x-machine": "mine", "cookie": "a=b"})
    sent = engine.asked[0][1]
    assert headers.items() <= sent.items()
    assert sent["user-agent"] == "pagantic"
    assert not {"authorization", "x-machine", "cookie"} & set(sent)


async def see(stub, **fields):
    prompt = generation_pb2.ChatPrompt(messages=[user_message("What is ", sample_image(), "this?")])
    return await collect(stub, pb.InferRequest(chat=prompt, **fields))


async def test_an_image_is_sent_as_a_data_url_in_its_place(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url, takes_images=True)}))
    await see(stub)
    url = image_of("image/png", sample_image()).url
    assert engine.last["messages"][0]["content"] == [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "this?"},
    ]
    counted = pb.CountTokensRequest(chat=generation_pb2.ChatPrompt(messages=[user_message(sample_image())]))
    reply = await call_unary("inference", stub.CountTokens, counted)
    assert reply.is_estimate
    assert reply.chat_tokens > ESTIMATED_TOKENS


async def test_an_engine_that_takes_no_images_gets_none(engine, stub):
    with pytest.raises(InvalidRequest, match="model 'big' takes no images: leave them out") as refused:
        await see(stub)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    assert not engine.asked


async def test_a_route_takes_images_if_all_its_models_do(engine, stub_of):
    remotes = {"seeing": remote(engine.url, takes_images=True), "blind": remote(engine.url)}
    routes = {"both": {"models": ["seeing", "blind"]}, "one": {"models": ["seeing"]}}
    stub = await stub_of(models_of(remotes, routes))
    await see(stub, model="one")
    with pytest.raises(InvalidRequest, match="model 'both' takes no images"):
        await see(stub, model="both")


async def test_sampling_stop_seed_and_reasoning_are_sent(engine, stub):
    sampling = generation_pb2.Sampling(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.125, repetition_penalty=1.5, seed=5, logit_bias={9: -1.0}
    )
    reasoning = generation_pb2.Reasoning(mode=generation_pb2.REASONING_MODE_OFF)
    request = chat(sampling=sampling, stop=["END"], max_tokens=9, candidate_count=2, reasoning=reasoning)
    engine.script = [
        choice(0, content="a"),
        choice(1, content="b"),
        choice(0, "stop"),
        choice(1, "stop"),
        usage(),
        DONE,
    ]
    events = await collect(stub, request)
    sent = engine.last
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["min_p"]) == (0.5, 0.9, 7, 0.125)
    assert (sent["repetition_penalty"], sent["seed"], sent["logit_bias"]) == (1.5, 5, {"9": -1.0})
    assert (sent["stop"], sent["max_tokens"], sent["n"]) == (["END"], 9, 2)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert events[0].started.seed == 5
    assert [text_of(events, index) for index in (0, 1)] == ["a", "b"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_separate_from_the_answer(engine, stub, name):
    engine.script = [choice(**{name: "hm"}), choice(content="yes"), *ended()]
    events = await collect(stub, chat())
    assert (text_of(events, field="reasoning"), text_of(events)) == ("hm", "yes")


async def test_a_tool_call_streams_and_ends_whole(engine, stub):
    engine.script = [
        call_piece(0, "call_a", "stock", ""),
        call_piece(0, arguments='{"article":'),
        call_piece(0, arguments='"lamp"}'),
        call_piece(1, "call a with spaces", "stock"),
        *ended("tool_calls"),
    ]
    events = await collect(stub, chat(tools=[TOOL]))
    assert engine.last["tools"][0]["function"]["name"] == "stock"
    assert engine.last["tool_choice"] == "auto"
    end = events[-2].candidate_end
    assert end.finish_reason == generation_pb2.FINISH_REASON_TOOL
    assert [(call.name, json.loads(call.arguments_json)) for call in end.tool_calls] == [
        ("stock", {"article": "lamp"}),
        ("stock", {}),
    ]
    assert end.tool_calls[0].id == "call_a"
    assert " " not in end.tool_calls[1].id
    pieces = [call for event in events for call in event.delta.tool_calls]
    streamed = {index: "".join(piece.arguments_json for piece in pieces if piece.index == index) for index in (0, 1)}
    assert streamed == {index: call.arguments_json for index, call in enumerate(end.tool_calls)}


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (message_pb2.ToolChoice(mode=message_pb2.TOOL_CHOICE_MODE_REQUIRED), "required"),
        (message_pb2.ToolChoice(tool_name="stock"), {"type": "function", "function": {"name": "stock"}}),
    ],
)
async def test_an_enforced_choice_is_sent_and_a_missing_call_is_malformed(engine, stub, wanted, sent):
    with pytest.raises(Internal, match="no tool call") as failed:
        await collect(stub, chat(tools=[TOOL], choice=wanted, stop=["x"]))
    assert failed.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE
    assert engine.last["tool_choice"] == sent
    assert "stop" not in engine.last
    engine.script = [call_piece(0, "c", "stock", "{}"), *ended("stop")]
    events = await collect(stub, chat(tools=[TOOL], choice=wanted))
    assert events[-2].candidate_end.finish_reason == generation_pb2.FINISH_REASON_TOOL


async def test_a_choice_of_no_tool_offers_none(engine, stub):
    await collect(stub, chat(tools=[TOOL], choice=message_pb2.ToolChoice(mode=message_pb2.TOOL_CHOICE_MODE_NONE)))
    assert "tools" not in engine.last


async def test_a_conversation_with_calls_keeps_its_form(engine, stub):
    call = message_pb2.ToolCall(id="c1", name="stock", arguments_json='{"a":1}')
    request = pb.InferRequest()
    request.chat.messages.extend(
        [
            message_pb2.Message(role=message_pb2.ROLE_USER, content="how many?"),
            message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, tool_calls=[call]),
            message_pb2.Message(role=message_pb2.ROLE_TOOL, content="12", tool_call_id="c1", name="stock"),
            message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content="Be brief."),
        ]
    )
    await collect(stub, request)
    assert [message["role"] for message in engine.last["messages"]] == ["system", "user", "assistant", "tool"]
    assert engine.last["messages"][2]["tool_calls"][0]["function"] == {"name": "stock", "arguments": '{"a":1}'}
    assert engine.last["messages"][3]["tool_call_id"] == "c1"


async def test_a_schema_is_sent_and_never_claimed_to_be_enforced(engine, stub):
    engine.script = spoken('{"a": 1}')
    constraint = generation_pb2.DecoderConstraint(schema_json=SCHEMA)
    events = await collect(stub, chat(constraint=constraint, tools=[TOOL]))
    assert engine.last["tool_choice"] == "none"
    assert engine.last["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA)
    assert not events[-2].candidate_end.constraint_satisfied


@pytest.mark.parametrize(
    "constraint",
    [{"regex": "a+"}, {"gbnf": 'root ::= "a"'}, {"engine_text": 'start: "a" | "b"\n'}, {"schema_json": "1"}],
)
async def test_a_constraint_that_the_api_cannot_take_is_refused_and_nothing_is_sent(engine, stub, constraint):
    with pytest.raises(InvalidRequest, match="JSON Schemas of objects only") as refused:
        await collect(stub, chat(constraint=generation_pb2.DecoderConstraint(**constraint)))
    assert refused.value.code is ErrorCode.CONSTRAINT_GRAMMAR_INVALID
    assert not engine.asked


async def test_raw_text_is_continued(engine, stub):
    engine.script = [
        choice(text="b", logprobs={"tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": [{"b": -0.5, "c": -2}]}),
        choice(finish_reason="length", text=""),
        usage(),
        DONE,
    ]
    events = await collect(stub, pb.InferRequest(text="a", top_logprobs=2, max_tokens=1))
    path, _headers, body = engine.asked[0]
    assert (path, body["prompt"], body["logprobs"]) == ("/v1/completions", "a", 2)
    assert text_of(events) == "b"
    assert events[-2].candidate_end.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    (logprob,) = [logprob for event in events for logprob in event.delta.logprobs]
    assert (logprob.token, logprob.piece, logprob.logprob) == (-1, b"b", -0.5)
    assert [other.piece for other in logprob.top] == [b"b", b"c"]
    with pytest.raises(InvalidRequest, match="raw text"):
        await collect(stub, pb.InferRequest(text="a", constraint=generation_pb2.DecoderConstraint(schema_json="{}")))


async def test_log_probabilities_of_a_chat_have_their_bytes(engine, stub):
    entry = {"token": "é", "bytes": [195], "logprob": -9999.5, "top_logprobs": [{"token": "x", "id": 4, "logprob": -1}]}
    engine.script = [choice(content="é", logprobs={"content": [entry]}), *ended()]
    events = await collect(stub, chat(top_logprobs=1))
    assert (engine.last["logprobs"], engine.last["top_logprobs"]) == (True, 1)
    (logprob,) = [logprob for event in events for logprob in event.delta.logprobs]
    assert (logprob.piece, logprob.logprob) == (b"\xc3", -9999.0)
    assert (logprob.top[0].token, logprob.top[0].piece) == (4, b"x")


async def test_an_engine_that_counts_nothing_is_counted_for(engine, stub):
    engine.script = [choice(content="a"), choice(content="b"), choice(finish_reason="stop"), DONE]
    completed = (await collect(stub, chat("x" * 300)))[-1].completed
    assert completed.usage.output_tokens == 2
    assert 100 <= completed.usage.prompt_tokens <= 130


async def test_one_of_several_candidates_is_cancelled(engine, stub):
    hold = Hold()
    late = [choice(0, content="c"), choice(1, content="d"), choice(0, "stop"), choice(1, "stop"), usage(), DONE]
    engine.script = [choice(0, content="a"), choice(1, content="b"), hold, *late]
    ends, wanted = {}, None
    async for event_ in call_stream("inference", stub.Infer, chat(candidate_count=2), 10.0):
        if event_.WhichOneof("event") == "started":
            wanted = pb.CancelCandidatesRequest(inference_id=event_.started.inference_id, candidate_indexes=[1])
            await call_unary("inference", stub.CancelCandidates, wanted)
            with pytest.raises(InvalidRequest, match="candidate 2"):
                await call_unary(
                    "inference",
                    stub.CancelCandidates,
                    pb.CancelCandidatesRequest(inference_id=wanted.inference_id, candidate_indexes=[2]),
                )
            hold.release.set()
        if event_.WhichOneof("event") == "candidate_end":
            ends[event_.candidate_end.candidate_index] = event_.candidate_end.finish_reason
    assert ends == {0: generation_pb2.FINISH_REASON_STOP, 1: generation_pb2.FINISH_REASON_CANCELLED}
    with pytest.raises(NotFound):
        await call_unary("inference", stub.CancelCandidates, wanted)


async def test_extra_fields_are_added_and_null_leaves_one_out(engine, stub_of):
    extra = {"stream_options": None, "provider": {"order": ["x"]}}
    fields = remote(engine.url, extra_body=extra, max_tokens_field="max_completion_tokens")
    stub = await stub_of(models_of({"big": fields}))
    await collect(stub, chat(max_tokens=3))
    assert "stream_options" not in engine.last
    assert engine.last["provider"] == {"order": ["x"]}
    assert (engine.last["max_completion_tokens"], "max_tokens" in engine.last) == (3, False)


async def test_options_of_a_request_reach_the_engine_where_the_alias_allows_them(engine, stub_of):
    fields = remote(engine.url, allowed_options=["reasoning_effort", "user"])
    stub = await stub_of(models_of({"big": fields, "plain": remote(engine.url)}))
    await collect(stub, chat(options_json='{"reasoning_effort":"low","user":null}'))
    assert engine.last["reasoning_effort"] == "low"
    assert "user" not in engine.last
    engine.asked.clear()
    for alias, options, wrong in (
        ("big", '{"user":"me","num_ctx":1}', "model 'big' has no option 'num_ctx'.*it takes reasoning_effort, user"),
        ("plain", '{"user":"me"}', "model 'plain' has no option 'user'.*it takes no options"),
        ("big", '{"user":1e999}', "options_json is not JSON"),
        ("big", f'{{"user":"{"x" * 16384}"}}', "options_json has 16395 bytes: it takes at most 16384"),
        ("big", "[]", "options_json is not a JSON object"),
    ):
        with pytest.raises(InvalidRequest, match=wrong):
            await collect(stub, chat(model=alias, options_json=options))
    assert engine.asked == []


async def test_the_key_of_a_variable_is_sent_and_shown_nowhere(engine, stub_of, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("VLLM_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-another")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-of-another: 1")
    models = models_of({"big": remote(engine.url, api_key_env="VLLM_KEY")})
    await collect(await stub_of(models), chat("my words"))
    assert not [word for word in ("sk-secret", "my words") if word in caplog.text]
    assert not {"openai._base_client", "httpx2", "httpcore2.http11"} & {record.name for record in caplog.records}
    headers = engine.asked[0][1]
    assert headers["authorization"] == "Bearer sk-secret"
    assert "another" not in str(headers)


async def test_tokens_are_estimated_and_said_to_be(stub):
    counted = await call_unary(
        "inference", stub.CountTokens, pb.CountTokensRequest(texts=["", "abc", "four"], chat=chat("abcdef").chat)
    )
    assert list(counted.text_tokens) == [0, 1, 2]
    assert counted.chat_tokens >= 2
    assert counted.is_estimate
    assert counted.context_window == 4096


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Tokenize", pb.TokenizeRequest(text="x")),
        ("Detokenize", pb.DetokenizeRequest(tokens=[1])),
        ("Score", pb.ScoreRequest(text="x", continuations=["y"])),
        ("Embed", pb.EmbedRequest(model="big", texts=["x"])),
    ],
)
async def test_what_another_engine_cannot_do_is_a_clear_refusal(stub, method, request_):
    with pytest.raises(InvalidRequest) as refused:
        await call_unary("inference", getattr(stub, method), request_)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_vectors_come_from_the_engine_with_unit_length(engine, stub_of):
    stub = await stub_of(models_of({"far": remote(engine.url, serves="embeddings")}))
    engine.script = {
        "data": [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]}],
        "usage": {"prompt_tokens": 5},
    }
    reply = await call_unary("inference", stub.Embed, pb.EmbedRequest(texts=["a", "b"]))
    rows = [list(row.values) for row in reply.embeddings]
    assert rows == [pytest.approx([0.6, 0.8]), pytest.approx([0.0, 1.0])]
    assert reply.usage.prompt_tokens == 5
    assert engine.last["input"] == ["a", "b"]
    with pytest.raises(InvalidRequest, match="generates no text"):
        await collect(stub, chat())


async def test_vectors_may_have_more_bytes_than_an_event(engine, stub_of):
    stub = await stub_of(models_of({"far": remote(engine.url, serves="embeddings")}))
    vectors = [{"index": index, "embedding": [0.123456789] * 4096} for index in range(32)]
    engine.script = {"data": vectors}
    reply = await call_unary("inference", stub.Embed, pb.EmbedRequest(texts=["x"] * 32))
    assert [len(row.values) for row in reply.embeddings] == [4096] * 32


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [{"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]},
        {"data": "no"},
    ],
)
async def test_vectors_of_another_form_are_malformed(engine, stub_of, answer):
    stub = await stub_of(models_of({"far": remote(engine.url, serves="embeddings")}))
    engine.script = answer
    with pytest.raises(Internal) as failed:
        await call_unary("inference", stub.Embed, pb.EmbedRequest(texts=["a", "b"]))
    assert failed.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE
