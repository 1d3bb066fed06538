"""Decisions over HTTP, in the shape of OpenAI's API."""

import pytest

from gateway.http.program import PATH
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from tests.support.scripted_services import ScriptedInference, scripted_services

PREDICATE = {"type": "predicate", "instructions": "It is late."}
CHOICE = {"type": "choice", "name": "kind", "instructions": "Which?", "choices": [{"value": True}, {"value": "true"}]}
SCORE = {"type": "score", "instructions": "How good?", "levels": [{"label": "bad"}, {"label": "good"}]}


async def decide(server, *questions, **fields):
    body = {"model": "", "input": "The bus came.", "questions": list(questions), **fields}
    return await server.http.post(f"{PATH}/decisions", json=body)


def services_of(*label_logprobs):
    inference = ScriptedInference()
    inference.label_logprobs = list(label_logprobs) or None
    return scripted_services(inference)


async def test_each_question_has_an_answer_of_its_kind(served):
    async with served(services_of((-1.0, -2.0), (-2.0, -1.0), (-1.0, -1.0)), models={"*": ""}) as server:
        response = await decide(server, PREDICATE, CHOICE, SCORE, model="gpt-6-luna", prompt_cache_key="k")
    told = response.json()
    late, kind, good = told["answers"]
    assert (response.status_code, told["model"]) == (200, "gpt-6-luna")
    assert late == {"type": "predicate", "name": None, "probability": pytest.approx(0.731, abs=1e-3)}
    assert (kind["type"], kind["name"], kind["choice"]) == ("choice", "kind", "true")
    assert [share["value"] for share in kind["probabilities"]] == [True, "true"]
    assert kind["confidence"] == pytest.approx(0.731, abs=1e-3)
    assert (good["score"], [share["value"] for share in good["probabilities"]]) == (pytest.approx(0.5), [0, 1])
    assert [share["label"] for share in good["probabilities"]] == ["bad", "good"]
    assert told["usage"]["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
    assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"], told["usage"]["total_tokens"]) == (10, 0, 10)
    assert told["pagantic"]["ignored"] == ["prompt_cache_key"]
    assert told["pagantic"]["request_id"] == response.headers["x-request-id"]
    assert told["pagantic"]["decisions"][0]["label_mass"] == pytest.approx(0.503, abs=1e-3)


async def test_a_decision_below_a_limit_is_a_refusal(served):
    async with served(services_of((-1.0, -1.1))) as server:
        extension = {"decisions": {"min_confidence": 0.9}, "request_id": "mine"}
        told = (await decide(server, {**PREDICATE, "name": "late"}, pagantic=extension)).json()
    assert told["answers"] == [{"type": "refusal", "name": "late"}]
    assert told["pagantic"]["decisions"][0]["abstention"] == "LOW_CONFIDENCE"
    assert told["pagantic"]["request_id"] == "mine"


async def test_a_conversation_with_calls_is_an_input(served):
    services = services_of()
    call = {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"}
    asked = [
        {"role": "developer", "content": "Be strict."},
        {"type": "message", "role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "noon"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "output_text", "text": "so"}]},
    ]
    async with served(services) as server:
        response = await decide(server, PREDICATE, input=asked)
    assert response.status_code == 200
    [command] = services.inference.commands
    assert command.messages[0].content.endswith("Be strict.")
    assert 'User: {"a":1}\n\nAssistant: clock({})\n\nTool: noon\n\nAssistant: no\n\nso' in command.messages[1].content


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"questions": []}, "questions: list should have at least 1 item"),
        ({"questions": [{"type": "guess", "instructions": "x"}]}, "questions[0].type"),
        ({"questions": [{"type": "choice", "instructions": "x"}]}, "questions[0].choices is missing"),
        ({"questions": [{"type": "score", "instructions": "x"}]}, "questions[0].levels is missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, "text alone"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "no call before it"),
        ({"input": [{"type": "reasoning"}]}, "send messages, calls"),
        ({"pagantic": {"decisions": {"questions": [{}]}}}, "pagantic.decisions.questions is set"),
        ({"pagantic": {"session_id": "s"}}, "leave session_id unset"),
    ],
)
async def test_what_cannot_be_decided_is_refused_in_the_shape_of_the_api(served, fields, words):
    async with served() as server:
        response = await decide(server, PREDICATE, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]


async def test_a_failed_execution_is_an_error(served):
    services = services_of()
    unknown = {"unknown_model": "none"}
    services.inference.label_logprobs = InvalidRequest("no model", code=ErrorCode.CONFIG_NO_ENGINE, details=unknown)
    async with served(services) as server:
        response = await decide(server, PREDICATE)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "CONFIG_NO_ENGINE")
