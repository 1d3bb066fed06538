"""`pagantic serve` before the real system, used by the own clients of OpenAI, Anthropic and Ollama."""

import json
import math

import anthropic
import grpc
import httpx
import ollama
import openai
import pytest

from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from tests.support.gateway_process import serving_gateway
from tests.support.killing import wait_until

COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green", "blue"]}},
    "required": ["color"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "color", "schema": COLOR}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="session")
def gateway(system):
    with serving_gateway(system.environment) as url:
        yield url


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=gateway, api_key="any", max_retries=0, timeout=120) as opened:
        yield opened


def asked(client, text="Say hello.", **fields):
    fields = {"model": "gpt-4o", "max_tokens": 24, "temperature": 0, "seed": 1} | fields
    return client.chat.completions.create(messages=[{"role": "user", "content": text}], **fields)


def test_a_chat_gives_text_usage_and_probabilities(client):
    answer = asked(client, n=2, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    (first, _) = answer.choices
    assert first.message.content
    assert "".join(token.token for token in first.logprobs.content).startswith(first.message.content[:5])
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_is_the_answer_in_pieces(client):
    chunks = list(asked(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == asked(client).choices[0].message.content
    assert chunks[-1].usage.completion_tokens > 0
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")


def test_a_schema_holds_whole_and_streamed_and_a_vote_has_its_confidence(client):
    answer = asked(client, "Which color is a ripe tomato?", response_format=FORMAT)
    assert json.loads(answer.choices[0].message.content)["color"] in ("red", "green", "blue")
    assert answer.pagantic["guarantee"] == "ENFORCED"
    chunks = list(asked(client, "Which color is a ripe tomato?", response_format=FORMAT, stream=True))
    assert json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks))["color"]
    vote = {"mode": "MODE_REDUNDANT", "voting": {"n": 3}}
    voted = asked(client, "Which color is a ripe tomato?", response_format=FORMAT, extra_body={"pagantic": vote})
    assert 0 < voted.pagantic["confidence"] <= 1


def test_a_tool_is_called_and_its_result_read(client):
    text = "What is the weather in Paris?"
    answer = asked(client, text, tools=[WEATHER], tool_choice="required", max_tokens=64)
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert "city" in json.loads(call.function.arguments)
    talk = [
        {"role": "user", "content": text},
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"},
    ]
    last = client.chat.completions.create(model="gpt-4o", messages=talk, tools=[WEATHER], max_tokens=24)
    assert last.choices[0].message.content or last.choices[0].message.tool_calls
    chunks = list(asked(client, text, tools=[WEATHER], tool_choice="required", max_tokens=64, stream=True))
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert pieces[0].function.name == "get_weather"
    assert "city" in json.loads("".join(piece.function.arguments for piece in pieces))


def test_an_answer_that_a_limit_cut_says_so(client):
    long = {"type": "object", "properties": {"text": {"type": "string", "minLength": 500}}, "required": ["text"]}
    schema = {"type": "json_schema", "json_schema": {"name": "long", "schema": long}}
    assert asked(client, response_format=schema, max_tokens=8).choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "none-such"}, openai.NotFoundError, "CONFIG_NO_ENGINE"),
        ({"temperature": 9}, openai.BadRequestError, "CONFIG_INVALID"),
        ({"temperature": 9, "stream": True}, openai.BadRequestError, "CONFIG_INVALID"),
        ({"n": 100}, openai.BadRequestError, "CONFIG_INVALID"),
    ],
)
def test_failures_are_the_clients_own_exceptions_with_our_codes(client, fields, error, code):
    with pytest.raises(error) as raised:
        asked(client, **fields)
    assert raised.value.code == code


def test_models_are_listed_with_the_names_that_stand_for_them(client):
    listed = [model.id for model in client.models.list()]
    assert "gpt-4o" in listed
    assert client.models.retrieve(listed[0]).id == listed[0]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none-such")


def test_a_client_that_leaves_stops_its_execution(client, system):
    stream = asked(client, "Tell a long story.", stream=True, max_tokens=2000)
    next(iter(stream))
    request_id = stream.response.headers["x-request-id"]
    stream.close()

    def is_cancelled():
        shown = system.run("pagantic", "show", request_id, check=False)
        return "CANCELLED" in shown.stdout + shown.stderr

    wait_until(is_cancelled, "it is cancelled")


def test_raw_texts_are_continued_whole_in_a_stream_and_in_lists(client, gateway):
    said = {"model": "gpt-4o", "max_tokens": 8, "temperature": 0, "seed": 1}
    text = "The capital of France is"
    whole = client.completions.create(prompt=text, logprobs=2, **said)
    chunks = list(client.completions.create(prompt=text, stream=True, stream_options={"include_usage": True}, **said))
    several = client.completions.create(prompt=[text, "One, two, three,"], echo=True, n=2, **said)
    [choice] = whole.choices
    assert choice.text
    assert "".join(choice.logprobs.tokens).startswith(choice.text)
    assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
    assert all(len(top) in (2, 3) for top in choice.logprobs.top_logprobs)
    assert (choice.finish_reason, whole.usage.completion_tokens) == ("length", 8)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == choice.text
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert [one.index for one in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text.startswith(text)
    assert several.choices[3].text.startswith("One, two, three,")
    marked = client.completions.create(prompt=f"{text}<|im_end|>", **said)
    assert marked.usage.prompt_tokens == whole.usage.prompt_tokens + 1  # A control token is one token.
    with ollama.Client(host=gateway.removesuffix("/v1"), timeout=120) as other:
        options = {"temperature": 0, "num_predict": 8}
        raw = other.generate(model="gpt-4o", prompt=text, raw=True, options=options)
    assert raw.prompt_eval_count == whole.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="suffix is set"):
        client.completions.create(prompt=text, suffix=".", **said)


def test_anthropics_client_gets_messages_streams_and_calls(gateway):
    said = {"model": "gpt-4o", "max_tokens": 24, "messages": [{"role": "user", "content": "Say hello."}]}
    greedy = {"temperature": 0, "top_k": 1}
    with anthropic.Anthropic(base_url=gateway.removesuffix("/v1"), api_key="any", max_retries=0, timeout=120) as client:
        message = client.messages.create(**said, extra_body=greedy)
        with client.messages.stream(**said, extra_body=greedy) as stream:
            streamed = stream.get_final_message()
        function = WEATHER["function"]
        tool = {"name": function["name"], "input_schema": function["parameters"]}
        limits = {"max_tokens": 64, "tool_choice": {"type": "any"}}
        with client.messages.stream(**said | limits, tools=[tool], extra_body=greedy) as stream:
            called = stream.get_final_message()
        with pytest.raises(anthropic.NotFoundError) as raised:
            client.messages.create(**said | {"model": "none-such"})
        listed = [model.id for model in client.models.list()]
    assert message.content[0].text == streamed.content[0].text
    assert streamed.stop_reason in ("end_turn", "max_tokens")
    assert streamed.usage.output_tokens > 0
    assert (called.stop_reason, called.content[-1].name) == ("tool_use", "get_weather")
    assert "city" in called.content[-1].input
    assert raised.value.body["error"]["pagantic"]["code"] == "CONFIG_NO_ENGINE"
    assert "gpt-4o" in listed


def test_ollamas_client_gets_chats_lines_and_calls(gateway):
    said = {"model": "gpt-4o", "options": {"temperature": 0, "num_predict": 24}}
    talk = [{"role": "user", "content": "Say hello."}]
    with ollama.Client(host=gateway.removesuffix("/v1"), timeout=120) as client:
        whole = client.chat(messages=talk, **said)
        lines = list(client.chat(messages=talk, stream=True, **said))
        color = client.generate(prompt="Which color is a ripe tomato?", format=COLOR, **said)
        called = client.chat(
            messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[WEATHER], **said
        )
        with pytest.raises(ollama.ResponseError) as raised:
            client.chat(model="none-such", messages=talk)
        listed = [model.model for model in client.list().models]
    assert "".join(line.message.content for line in lines) == whole.message.content
    assert (lines[-1].done, lines[-1].eval_count > 0, lines[-1].eval_duration > 0) == (True, True, True)
    assert json.loads(color.response)["color"] in ("red", "green", "blue")
    assert called.message.content or called.message.tool_calls
    assert raised.value.status_code == 404
    assert "gpt-4o" in listed


SYSTEM = "You are terse."
CLOCK = {"name": "clock", "description": "Tells the time.", "input_schema": {"type": "object", "properties": {}}}
EARLIER = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": ""}]}]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": SYSTEM},
        {"tools": [CLOCK]},
        {"tools": [CLOCK], "system": SYSTEM},
        {"tools": [CLOCK], "tool_choice": {"type": "none"}},
    ],
)
def test_the_tokens_that_are_counted_are_those_that_the_model_reads(gateway, fields):
    messages = [*EARLIER, {"role": "user", "content": "What time is it?"}]
    with anthropic.Anthropic(base_url=gateway.removesuffix("/v1"), api_key="any", timeout=120) as client:
        counted = client.messages.count_tokens(model="gpt-4o", messages=messages, **fields)
        usage = client.messages.create(model="gpt-4o", max_tokens=64, messages=messages, **fields).usage
    read = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert counted.input_tokens == read


def test_ollamas_client_has_vectors_and_models_with_files(gateway):
    with ollama.Client(host=gateway.removesuffix("/v1"), timeout=120) as client:
        embedded = client.embed("all-MiniLM-L6-v2", ["The cat sleeps.", "A kitten naps."])
        old = client.embeddings("all-MiniLM-L6-v2", "The cat sleeps.")
        listed = {model.model: model for model in client.list().models}
        running = {model.model: model for model in client.ps().models}
        loaded = client.generate("gpt-4o")
    assert _cosine(*embedded.embeddings) > 0.5
    assert old.embedding == pytest.approx(embedded.embeddings[0])
    assert (listed["all-MiniLM-L6-v2"].size, listed["gpt-4o"].size) == (46_223_232, 0)
    assert all(len(model.digest) == 64 for model in listed.values())
    assert running
    assert all(listed[name].digest == model.digest for name, model in running.items())
    assert loaded.done_reason == "load"


def test_texts_that_mean_the_same_have_near_vectors(client):
    texts = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose in March."]
    response = client.embeddings.create(model="", input=texts)
    cat, kitten, rates = [item.embedding for item in response.data]
    assert math.hypot(*cat) == pytest.approx(1, abs=1e-3)
    assert _cosine(cat, kitten) > _cosine(cat, rates) + 0.3
    assert response.usage.prompt_tokens > len(texts)
    counted = client.responses.input_tokens.count(input=texts[0])
    assert counted.input_tokens > response.usage.prompt_tokens / len(texts)


def test_documents_have_the_probabilities_that_the_cross_encoder_gives_them(system, gateway):
    query, texts = "When does the port shut?", ["The harbour closes at nine.", "Cats sleep for most of the day."]
    with grpc.insecure_channel(system.address("inference")) as channel:
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
        scored = stub.ScorePairs(inference_service_pb2.ScorePairsRequest(query=query, texts=texts), timeout=60)
    body = {"model": "", "query": query, "documents": texts}
    told = httpx.post(f"{gateway}/rerank", json=body, timeout=60).raise_for_status().json()
    found = {result["index"]: result["relevance_score"] for result in told["results"]}
    expected = {index: 1 / (1 + math.exp(-score)) for index, score in enumerate(scored.scores)}
    assert found == pytest.approx(expected, rel=1e-3)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def _cosine(one, other):
    return sum(left * right for left, right in zip(one, other, strict=True))


def test_an_operator_sees_the_replica_and_loads_and_unloads_a_model(gateway, system):
    with httpx.Client(base_url=gateway, timeout=120) as http:
        loaded = http.post("models/pairs/load").json()
        [replica] = http.get("replicas").json()["replicas"]
        unloaded = http.post("models/pairs/unload").json()
        [without] = http.get("replicas").json()["replicas"]
        unknown = http.post("models/none/load")
    assert [one["address"] for one in loaded["results"]] == [system.address("inference")]
    assert [one["was_loaded"] for one in unloaded["results"]] == [True]
    place = [model["name"] for model in replica["models"]].index("pairs")
    assert replica["states"][place]["is_loaded"]
    assert not without["states"][place].get("is_loaded", False)
    assert replica["load"]["sequence_capacity"] > 0
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "CONFIG_NO_ENGINE")


def test_a_file_is_stored_found_and_deleted_with_its_collection(gateway):
    with httpx.Client(base_url=gateway, timeout=120) as http:
        lamps = b"# Lamps\n\nThe red one costs 42."
        stored = http.post("collections/lamps/files", params={"source": "a.md"}, content=lamps)
        found = http.post("collections/lamps/search", json={"query": "red", "policy": {"max_chunks": 1}}).json()
        deleted = http.delete("collections/lamps")
    assert stored.json()["outcome"] == "FILE_OUTCOME_ADDED"
    assert "costs 42" in found["chunks"][0]["content"]
    assert deleted.status_code == 200
