"""Raw texts over HTTP: whole and streamed continuations, their failures, and what is left when clients have gone."""

import asyncio

import httpx
import pytest

from pagantic_common.domain.errors import ErrorCode, Internal
from services.orchestrator.core.model.response import FinishReason
from tests.integration.http.test_chat import TOO_LONG, none_runs, scripted
from tests.integration.http.test_responses import client_of
from tests.support.http_app import data_in
from tests.support.openai_document import as_documented, problems_of
from tests.support.scripted_services import BreakingInference, answer, scripted_services

PATH = "/v1/completions"
TEXT = "The sky is"


def body(prompt=TEXT, **fields):
    return {"model": "", "prompt": prompt, **fields}


async def asked(server, prompt=TEXT, **fields):
    return await server.http.post(PATH, json=body(prompt, **fields))


async def streamed(server, prompt=TEXT, **fields):
    return await asked(server, prompt, stream=True, **fields)


def texts_in(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["text"] for choice in choices)


async def test_a_text_is_continued_by_openais_client(served):
    services = scripted(answer(" blue today"))
    async with served(services) as server, client_of(server) as client:
        made = await client.completions.create(model="", prompt=TEXT, max_tokens=7, seed=3, user="me")
        stream = await client.completions.create(model="", prompt=TEXT, stream=True)
        chunks = [chunk async for chunk in stream]
    [choice] = made.choices
    assert (made.object, made.model, choice.text) == ("text_completion", "scripted", " blue today")
    assert (choice.finish_reason, choice.logprobs, made.usage.total_tokens) == ("stop", None, 13)
    assert made.id == f"cmpl-{made.pagantic['request_id']}"
    assert made.pagantic["ignored"] == ["user"]
    assert "".join(chunk.choices[0].text for chunk in chunks) == " blue today"
    command, hints = services.inference.commands[0], services.inference.hinted[0]
    assert (command.text_prompt, command.messages, command.tools) == (TEXT, (), ())
    assert (hints.max_tokens, hints.seed, services.inference.hinted[1].max_tokens) == (7, 3, 16)


async def test_answers_and_chunks_are_as_the_document_has_them(served):
    async with served() as server:
        made = (await asked(server, ["a", "b"], n=2)).json()
        chunks = data_in((await streamed(server, stream_options={"include_usage": True})).text)
    told = [made, *(chunk for chunk in chunks if not chunk["choices"] or chunk["choices"][0]["finish_reason"])]
    assert len(told) == 3
    assert [problem for one in told for problem in problems_of(as_documented(one), "CreateCompletionResponse")] == []
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["usage"]["total_tokens"], made["usage"]["prompt_tokens"]) == (13, 20)


async def test_each_text_of_a_list_has_its_answers_in_order(served):
    services = scripted(*(answer(f" {number}") for number in range(4)))
    async with served(services) as server:
        told = (await asked(server, ["a", "b"], n=2, seed=5, echo=True)).json()
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    assert [choice["text"][0] for choice in told["choices"]] == ["a", "a", "b", "b"]
    asked_for = zip(services.inference.commands, services.inference.hinted, strict=True)
    assert sorted((command.text_prompt, hints.seed) for command, hints in asked_for) == [
        ("a", 5),
        ("a", 6),
        ("b", 5),
        ("b", 6),
    ]
    ends = ("", ".2", ".3", ".4")
    assert told["pagantic"]["request_ids"] == [told["id"].removeprefix("cmpl-") + end for end in ends]
    assert told["usage"]["completion_tokens"] == 12


async def test_choices_are_told_apart_in_a_stream_which_may_repeat_the_prompt(served):
    async with served(scripted(answer("1"), answer("2"))) as server:
        chunks = data_in((await streamed(server, ["a", "b"], echo=True)).text)
    assert {texts_in(chunks, 0), texts_in(chunks, 1)} in ({"a1", "b2"}, {"a2", "b1"})
    ends = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert {(end["index"], end["finish_reason"]) for end in ends} == {(0, "stop"), (1, "stop")}


async def test_a_text_that_a_limit_cut_or_that_is_at_its_end_is_no_failure(served):
    async with served(scripted(answer("bl", reason=FinishReason.LENGTH), answer(""))) as server:
        [cut] = (await asked(server)).json()["choices"]
        [ended] = (await asked(server)).json()["choices"]
    assert (cut["text"], cut["finish_reason"]) == ("bl", "length")
    assert (ended["text"], ended["finish_reason"]) == ("", "stop")


async def test_a_schema_binds_a_text_too(served):
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    services = scripted(answer('{"a":1}'))
    async with served(services) as server:
        told = (await asked(server, response_format=schema)).json()
    assert told["choices"][0]["text"] == '{"a":1}'
    assert told["pagantic"]["guarantee"] == "ENFORCED"
    assert services.inference.commands[0].engine_text


async def test_a_request_id_is_the_key_of_the_answer(served):
    services = scripted(answer("one"), answer("two"))
    extension = {"request_id": "mine"}
    async with served(services) as server:
        first = await asked(server, pagantic=extension)
        again = await streamed(server, pagantic=extension)
        other = await asked(server, "something else", pagantic=extension)
    assert first.headers["x-request-id"] == "mine"
    assert (first.json()["choices"][0]["text"], texts_in(data_in(again.text))) == ("one", "one")
    assert (other.status_code, len(services.inference.commands)) == (409, 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": None}, "GET /v1/models"),
        ({"prompt": ""}, "prompt is missing"),
        ({"prompt": [1]}, "prompt[0] is no text"),
        ({"temperature": 3}, "temperature is 3"),
        ({"suffix": "}"}, "suffix is set"),
        ({"pagantic": {"session_id": "s"}}, "leave session_id unset, or send messages"),
        ({"pagantic": {"mode": "MODE_PLAN"}}, "mode PLAN reads messages"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_wrong_request_has_its_status_also_where_a_stream_is_asked_for(served, fields, words, streams):
    async with served() as server:
        refused = await server.http.post(PATH, json=body(stream=streams) | fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "CONFIG_INVALID")
    assert words in error["message"]


async def test_a_failure_is_a_status_before_a_stream_began_and_then_an_event(served):
    broken = Internal("it broke", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    async with served(scripted(broken, TOO_LONG)) as server:
        failed = await asked(server)
        refused = await streamed(server)
        echoed = await streamed(server, echo=True)
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "INFERENCE_ENGINE_ERROR")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INFERENCE_CONTEXT_EXCEEDED")
    assert echoed.status_code == 400
    async with served(scripted_services(BreakingInference())) as server:
        *_, last = data_in((await streamed(server)).text)
    assert last["error"]["code"] == "INFERENCE_ENGINE_ERROR"


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": ["a", "b"], "stream": True}])
async def test_a_client_that_leaves_stops_its_executions(served, fields):
    services = scripted(None)
    async with served(services) as server:
        async with httpx.AsyncClient(base_url=server.http.base_url) as leaving:
            asking = asyncio.create_task(leaving.post(PATH, json=body() | fields))
            await asyncio.wait_for(services.inference.waiting.wait(), 60)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(services.inference.stopped.wait(), 60)
        await none_runs(server)


async def test_a_raw_prompt_of_ollamas_client_is_continued(served):
    services = scripted(answer(" blue today"))
    async with served(services) as server:
        sent = {"model": "", "prompt": TEXT, "raw": True}
        whole = (await server.http.post("/api/generate", json=sent | {"stream": False})).json()
        lines = (await server.http.post("/api/generate", json=sent)).text
    assert (whole["response"], whole["done_reason"]) == (" blue today", "stop")
    assert [command.text_prompt for command in services.inference.commands] == [TEXT, TEXT]
    assert lines.count('"done":true') == 1
