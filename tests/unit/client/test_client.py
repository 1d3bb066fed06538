"""Both clients against an orchestrator that answers as told, over a real socket."""

from __future__ import annotations

import json
import threading
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import pytest
from pydantic import BaseModel, TypeAdapter, field_validator

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import (
    AsyncClient,
    Client,
    ask_request,
    chat_request,
    plan_request,
    plan_step,
    structured_request,
    vote_request,
)
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    NotFound,
    PaganticError,
    PreconditionFailed,
    Unavailable,
)
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving


@pytest.fixture
def orchestrator():
    return ScriptedOrchestrator()


@pytest.fixture
def address(orchestrator):
    with serving(orchestrator) as at:
        yield at


@pytest.fixture
def client(address):
    with Client(address, timeout_s=10) as made:
        yield made


class City(BaseModel):
    name: str
    inhabitants: int

    @field_validator("inhabitants")
    @classmethod
    def _is_positive(cls, value):
        if value < 0:
            raise ValueError("must not be negative")
        return value


def failure(code=error_pb2.ERROR_CODE_INFERENCE_MODEL_UNAVAILABLE):
    return execution_pb2.SystemResponse(
        request_id="r1", error=error_pb2.SystemError(code=code, message="no model", retryable=True)
    )


def test_chat_sends_the_users_words_and_the_hints(client, orchestrator):
    assert client.chat("hi", system="be kind", session_id="s", max_tokens=5, temperature=0.0).content == "hello"
    (request,) = orchestrator.requests
    assert request.mode == execution_pb2.MODE_CHAT
    assert request.messages[0] == message_pb2.Message(role=message_pb2.ROLE_USER, content="hi")
    assert request.prompt.text == "be kind"
    assert request.hints.max_tokens == 5
    assert request.hints.HasField("temperature")
    assert not request.hints.HasField("seed")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("required", message_pb2.ToolChoice(mode=message_pb2.TOOL_CHOICE_MODE_REQUIRED)),
        ("clock", message_pb2.ToolChoice(tool_name="clock")),
    ],
)
def test_tool_choice_is_a_mode_or_a_tools_name(given, sent):
    assert chat_request("hi", tools=["clock"], tool_choice=given).hints.tool_choice == sent


def test_an_empty_list_of_tools_offers_none_although_the_contract_reads_it_as_all():
    choice = chat_request("hi", tools=[]).hints.tool_choice
    assert choice.mode == message_pb2.TOOL_CHOICE_MODE_NONE


def test_chat_raises_what_the_response_failed_with(client, orchestrator):
    orchestrator.response = failure()
    with pytest.raises(Unavailable, match="no model") as raised:
        client.chat("hi")
    assert raised.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE


def test_execute_returns_a_failed_response_as_it_is(client, orchestrator):
    orchestrator.response = failure()
    assert client.execute(chat_request("hi")).error.message == "no model"


def test_structured_sends_the_types_schema_and_returns_an_instance(client, orchestrator):
    orchestrator.response.structured_output_json = '{"name": "Ulm", "inhabitants": 126000}'
    assert client.structured("Ulm", City) == City(name="Ulm", inhabitants=126000)
    assert '"inhabitants"' in orchestrator.requests[0].output.schema_json


def test_an_answer_that_a_validator_refuses_is_a_schema_failure_without_its_text(client, orchestrator):
    orchestrator.response.structured_output_json = '{"name": "Ulm", "inhabitants": -1}'
    with pytest.raises(PaganticError, match="not its validators: inhabitants: Value error") as raised:
        client.structured("Ulm", City)
    assert raised.value.code is ErrorCode.CONSTRAINT_SCHEMA_INVALID
    assert raised.value.failure.details == {"violations": ["inhabitants: Value error, must not be negative"]}
    first, _, last = orchestrator.requests
    assert len(first.messages) == 1
    assert len(last.messages) == 5
    assert "must not be negative" in last.messages[-1].content


def test_a_refused_answer_is_asked_for_again_under_an_id_of_its_own(client, orchestrator):
    answers = ['{"name": "Ulm", "inhabitants": -1}', '{"name": "Ulm", "inhabitants": 1}']
    orchestrator.answers = answers
    result = client.structured("Ulm", City, full=True, request_id="r")
    assert result.value == City(name="Ulm", inhabitants=1)
    assert result.refusals == 1
    assert [request.request_id for request in orchestrator.requests] == ["r", "r.2"]


@dataclass
class Point:
    x: int


class Open(BaseModel, extra="allow"):
    x: int


@pytest.mark.parametrize(
    ("output_type", "answer", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (int | str, '"a"', "a"),
        (Literal["a", "b"], '"b"', "b"),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Point, '{"x": 1}', Point(1)),
        (TypeAdapter(list[City]), '[{"name": "Ulm", "inhabitants": 1}]', [City(name="Ulm", inhabitants=1)]),
    ],
)
def test_any_type_is_an_output(client, orchestrator, output_type, answer, value):
    orchestrator.response.structured_output_json = answer
    assert client.structured("?", output_type) == value


def sent_schema(orchestrator):
    return json.loads(orchestrator.requests[-1].output.schema_json)


def test_objects_are_sent_closed_unless_the_type_allows_extras(client, orchestrator):
    orchestrator.response.structured_output_json = '[{"name": "Ulm", "inhabitants": 1}]'
    client.structured("?", list[City])
    assert sent_schema(orchestrator)["$defs"]["City"]["additionalProperties"] is False
    orchestrator.response.structured_output_json = '{"x": 1, "y": 2}'
    assert client.structured("?", Open).model_extra == {"y": 2}
    assert sent_schema(orchestrator)["additionalProperties"] is True


def test_the_whole_result_has_usage_guarantee_and_id(client, orchestrator):
    orchestrator.response.structured_output_json = "[1]"
    orchestrator.response.token_usage.output_tokens = 3
    orchestrator.response.validation.guarantee = contract_pb2.GUARANTEE_ENFORCED
    result = client.structured("?", list[int], full=True)
    assert (result.value, result.usage.output_tokens, result.guarantee) == ([1], 3, "ENFORCED")
    assert result.request_id == orchestrator.response.request_id


@pytest.mark.parametrize(
    ("keywords", "wrong"),
    [({"maxtokens": 5}, "did you mean 'max_tokens'"), ({"zzz": 1}, "unexpected keyword 'zzz': there are")],
)
def test_a_misspelt_keyword_is_refused(client, keywords, wrong):
    with pytest.raises(TypeError, match=wrong):
        client.chat("hi", **keywords)


def test_every_option_is_sent():
    request = structured_request(
        "hi", {}, request_id="r", context="handbook", rules={"short": "size(output) < 9"}, semantic_intent="kind",
        max_retries=0, stop=["x"], logit_bias={1: 2.0}, top_k=3, min_p=0.1, top_logprobs=1, priority=-1,
        timeout_s=1.5, reasoning="off", reasoning_max_tokens=9, tools=["clock"],
    )  # fmt: skip
    assert (request.request_id, request.context.collection, request.semantic_intent) == ("r", "handbook", "kind")
    assert request.rules[0].expression == "size(output) < 9"
    assert request.retry.max_retries == 0
    assert request.retry.HasField("max_retries")
    assert (list(request.hints.stop), request.hints.logit_bias[1], request.hints.top_k) == (["x"], 2.0, 3)
    assert (request.hints.timeout.seconds, request.hints.timeout.nanos) == (1, 500_000_000)
    assert (request.hints.reasoning.mode, request.hints.reasoning.max_tokens) == (generation_pb2.REASONING_MODE_OFF, 9)
    assert list(request.tools) == ["clock"]


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: vote_request("?", {}, strategy="best"), "strategy is 'best': it must be one of 'majority'"),
        (lambda: chat_request("?", reasoning="maybe"), "reasoning is 'maybe': it must be one of 'auto'"),
    ],
)
def test_a_word_that_is_none_of_those_known_is_refused_with_them(make, wrong):
    with pytest.raises(ValueError, match=wrong):
        make()


def test_the_address_is_the_environments_unless_given(monkeypatch, address):
    monkeypatch.setenv("PAGANTIC_ADDRESS", address)
    with Client(timeout_s=10) as client:
        assert client.chat("hi").content == "hello"


def test_a_plan_is_made_of_steps():
    request = plan_request("go", [plan_step("find", "retrieve", collection="c"), plan_step("say", "infer", schema={})])
    assert [(step.name, step.kind) for step in request.plan.steps] == [("find", "retrieve"), ("say", "infer")]
    assert json.loads(request.plan.steps[0].parameters_json) == {"collection": "c"}


def test_stream_yields_events_up_to_the_response(client):
    events = list(client.stream(chat_request("hi")))
    assert [event.WhichOneof("event") for event in events] == ["content_delta", "completed"]


def test_leaving_a_stream_early_cancels_the_request(client, orchestrator):
    stream = client.stream(chat_request("hang"))
    assert next(stream).content_delta.text == "hel"
    stream.close()
    assert orchestrator.cancelled.wait(60)


def test_an_unknown_request_is_not_found(client):
    with pytest.raises(NotFound, match="no execution has request_id 'r2'"):
        client.timeline("r2")


def test_an_interrupted_execution_is_taken_up_and_another_is_not(client):
    assert client.resume("r1") == execution_pb2.LIFECYCLE_STATE_EXECUTE
    with pytest.raises(PreconditionFailed, match="is not interrupted"):
        client.resume("r2")


def test_usage_is_told_by_session_and_model(client):
    (total,) = client.get_usage(session_id="s")
    assert (total.session_id, total.model, total.requests, total.cost_usd) == ("s", "default", 2, 0.5)


def test_usage_is_summed_by_the_named_keys(client):
    (total,) = client.get_usage(group_by=["tenant", "subject"])
    assert (total.subject, total.requests) == ("USAGE_KEY_TENANT,USAGE_KEY_SUBJECT", 2)
    with pytest.raises(ValueError, match="group_by is 'user': it must be one of 'session', 'model'"):
        client.get_usage(group_by=["user"])
    with pytest.raises(TypeError, match="group_by is the text 'tenant'"):
        client.get_usage(group_by="tenant")


def test_all_pages_of_sessions_are_listed(client):
    assert [session.session_id for session in client.list_sessions()] == ["a", "b"]


def test_cancel_tells_the_state_it_ended_in(client):
    assert client.cancel("r1") == execution_pb2.LIFECYCLE_STATE_CANCELLED


def test_a_call_that_takes_too_long_raises_deadline_exceeded(address):
    with Client(address, timeout_s=0.2) as client, pytest.raises(DeadlineExceeded):
        client.chat("hang")


def test_an_orchestrator_that_is_down_is_named():
    with Client("127.0.0.1:1", timeout_s=5) as client, pytest.raises(Unavailable, match="orchestrator service"):
        client.chat("hi")


def test_closing_twice_does_nothing(address):
    client = Client(address)
    client.close()
    client.close()


async def test_the_asyncio_client_streams_and_chats_on_one_connection(address):
    async with AsyncClient(address, timeout_s=10) as client:
        async with aclosing(client.stream(chat_request("hi"))) as events:
            kinds = [event.WhichOneof("event") async for event in events]
        assert kinds == ["content_delta", "completed"]
        assert (await client.chat("hi")).content == "hello"


@pytest.mark.parametrize(
    "make",
    [
        lambda: chat_request("?", stop="END"),
        lambda: chat_request("?", tools="clock"),
        lambda: plan_step("a", "infer", depends_on="b"),
    ],
)
def test_one_text_is_not_taken_for_its_letters(make):
    with pytest.raises(TypeError, match="must be a list of texts"):
        make()


def test_an_option_that_is_none_is_not_given():
    names = (
        "temperature",
        "stop",
        "reasoning",
        "request_id",
        "max_retries",
        "rules",
        "logit_bias",
        "context",
        "timeout_s",
    )
    assert chat_request("hi", **dict.fromkeys(names)) == chat_request("hi")


def test_no_tools_and_a_required_call_is_a_contradiction():
    with pytest.raises(ValueError, match="tools is empty"):
        chat_request("hi", tools=[], tool_choice="required")


def test_closing_a_client_ends_its_streams(address):
    client = Client(address, timeout_s=30)
    stream = client.stream(chat_request("hang"))
    assert next(stream).content_delta.text == "hel"
    closing = threading.Thread(target=client.close)
    closing.start()
    with pytest.raises(PaganticError):
        next(stream)
    closing.join(60)
    assert not closing.is_alive()


def test_citations_are_asked_for_with_or_without_bounds():
    asked = chat_request("hi", context="handbook", citations=True)
    assert asked.output.HasField("citations")
    bounds = contract_pb2.Citations(max_claims=2)
    assert chat_request("hi", context="handbook", citations=bounds).output.citations == bounds
    assert not chat_request("hi", citations=False).HasField("output")


def test_a_question_to_a_collection_takes_a_calibration():
    request = ask_request("docs", "Why?", min_probability=0.3, slope=1.5, intercept=-0.25)
    expected = policy_pb2.Answerability(min_probability=0.3, slope=1.5, intercept=-0.25)
    assert request.context.answerability == expected
    unset = ask_request("docs", "Why?", min_probability=0.3).context.answerability
    assert not unset.HasField("slope")
    assert not unset.HasField("intercept")
    with pytest.raises(ValueError, match="give min_probability, too"):
        ask_request("docs", "Why?", slope=1.5)


def test_a_question_to_a_collection_does_not_take_another_context():
    with pytest.raises(ValueError, match=r"use chat_request\(question, context=policy, citations=True, tools=\[\]\)"):
        ask_request("docs", "Why?", context="other")
    assert ask_request("docs", "Why?", context="").context.collection == "docs"
