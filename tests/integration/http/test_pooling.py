"""Vectors, reranking and counts of tokens over HTTP."""

import math
import struct
from base64 import b64decode

import pytest

from gateway.http.program import PATH
from pagantic_common.domain.errors import ErrorCode
from services.orchestrator.adapters.operator_files import PromptFolder
from tests.integration.http.test_responses import CLOCK, client_of
from tests.support.openai_document import problems_of
from tests.support.scripted_services import ScriptedInference, scripted_services

DOCUMENTS = ["a red car", {"text": "a blue car", "id": 7}, "a dog"]


async def embeddings(server, given, **fields):
    return await server.http.post(f"{PATH}/embeddings", json={"model": "", "input": given, **fields})


async def rerank(server, query="blue car", path="/rerank", **fields):
    body = {"model": "", "query": query, "documents": DOCUMENTS, **fields}
    return await server.http.post(path, json=body)


async def test_vectors_are_in_the_order_of_the_texts_and_as_the_document_says(served):
    async with served(models={"*": ""}) as server:
        one = (await embeddings(server, "one two")).json()
        both = (await embeddings(server, ["one two", "three"], model="text-embedding-3-small", user="u")).json()
    assert problems_of(both, "CreateEmbeddingResponse") == []
    assert (both["model"], one["model"]) == ("text-embedding-3-small", "embedder")
    assert [item["index"] for item in both["data"]] == [0, 1]
    assert both["data"][0] == one["data"][0]
    assert both["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert both["pagantic"] == {"ignored": ["user"]}


async def test_base64_has_the_same_numbers_as_float32(served):
    async with served() as server, client_of(server) as client:
        [text] = (await embeddings(server, "three", encoding_format="base64")).json()["data"]
        [floats] = (await embeddings(server, "three", encoding_format="float")).json()["data"]
        [of_client] = (await client.embeddings.create(model="", input="three")).data
    assert list(struct.unpack("<3f", b64decode(text["embedding"]))) == floats["embedding"]
    assert of_client.embedding == floats["embedding"]


async def test_fewer_dimensions_are_the_first_ones_and_of_unit_length(served):
    async with served() as server:
        [whole] = (await embeddings(server, "three")).json()["data"]
        [two] = (await embeddings(server, "three", dimensions=2)).json()["data"]
        [three] = (await embeddings(server, "three", dimensions=3)).json()["data"]
        four = await embeddings(server, "three", dimensions=4)
    assert math.hypot(*two["embedding"]) == pytest.approx(1)
    assert two["embedding"] == pytest.approx([value / 0.8 for value in whole["embedding"][:2]])
    assert three == whole
    assert four.status_code == 400
    assert four.json()["error"]["message"] == "dimensions is 4: the vectors of this model have 3, so send that or fewer"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1212, 318], "input[0] is no text: send texts, because each model has token ids of its own"),
        (["hi", [1212]], "input[1] is no text: send texts, because each model has token ids of its own"),
        ([], "input: list should have at least 1 item"),
        (5, "input: "),
    ],
)
async def test_an_input_that_is_no_text_is_refused(served, given, message):
    async with served() as server:
        response = await embeddings(server, given)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_are_ordered_by_relevance(served, path):
    async with served() as server:
        told = (await rerank(server, path=path, top_n=2, max_tokens_per_doc=8)).json()
    assert [result["index"] for result in told["results"]] == [1, 0]
    assert told["results"][1] == {"index": 0, "relevance_score": 0.5}
    assert told["usage"] == {"prompt_tokens": 30, "total_tokens": 30}
    assert told["pagantic"] == {"ignored": ["documents[].id", "max_tokens_per_doc"]}


async def test_documents_come_back_as_they_were_sent_if_that_is_asked_for(served):
    async with served() as server:
        told = (await rerank(server, return_documents=True)).json()
    assert [result["document"] for result in told["results"]] == [
        {"text": "a blue car", "id": 7},
        {"text": "a red car"},
        {"text": "a dog"},
    ]


async def test_without_a_cross_encoder_the_error_says_what_to_configure(served):
    inference = ScriptedInference()
    inference.cross_encoders = ()
    async with served(scripted_services(inference)) as server:
        response = await rerank(server)
    assert response.status_code == 501
    error = response.json()["error"]
    assert error["code"] == ErrorCode.CONFIG_NO_ENGINE.value
    assert "PAGANTIC_INFERENCE_MODELS" in error["message"]


async def count(client, **fields):
    counted = (await client.responses.input_tokens.count(**fields)).to_dict()
    assert problems_of(counted, "TokenCountsResource") == []
    return counted["input_tokens"]


async def test_the_tokens_of_a_response_are_those_of_its_messages_and_instructions(served):
    inference = ScriptedInference()
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        assert await count(client) == 0
        assert await count(client, input="one two") == 3
        items = [{"role": "developer", "content": "four"}, {"role": "user", "content": "one two"}]
        assert await count(client, input=items, instructions="five six", tools=[CLOCK]) == 7
    (system, user), _ = inference.counted[-1]
    assert (system.content, user.content) == ("five six\n\nfour", "one two")


async def test_what_was_said_before_counts_too(served, tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    folder.joinpath("host.txt").write_text("Greet {{ name }}.")
    async with served(scripted_services(prompts=PromptFolder(folder))) as server, client_of(server) as client:
        first = await client.responses.create(model="", input="one two")
        assert await count(client, previous_response_id=first.id) == 5
        assert await count(client, previous_response_id=first.id, input="three") == 7
        talk = await client.conversations.create(items=[{"role": "user", "content": "hi"}])
        assert await count(client, conversation=talk.id, input="three") == 4
        prompt = {"id": "host", "variables": {"name": "Ana"}}
        response = await server.http.post(f"{PATH}/responses/input_tokens", json={"input": "hi", "prompt": prompt})
        assert response.json()["input_tokens"] == 5


async def test_named_tools_of_the_deployment_count_unless_none_may_be_called(served):
    inference, offered = ScriptedInference(), []
    count_tokens = inference.count_tokens

    async def note(messages, tools, texts, model):
        offered.append([tool.name for tool in tools])
        return await count_tokens(messages, tools, texts, model)

    inference.count_tokens = note
    lamp = {"type": "function", "name": "lamp", "parameters": {"type": "object"}}
    async with served(scripted_services(inference)) as server:
        for fields in ({}, {"tool_choice": "none"}, {"pagantic": {"tools": ["clock"]}}):
            body = {"input": "hi", "tools": [lamp], **fields}
            response = await server.http.post(f"{PATH}/responses/input_tokens", json=body)
            assert response.json() == {"object": "response.input_tokens", "input_tokens": 2}
    assert offered == [["lamp"], [], ["clock", "lamp"]]
