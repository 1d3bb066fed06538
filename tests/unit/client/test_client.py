"""Both clients against an orchestrator that answers as told, over a real socket."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from pydantic import BaseModel, field_validator

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient, Client, chat_request
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
    with pytest.raises(PaganticError, match="not its validators") as raised:
        client.structured("Ulm", City)
    assert raised.value.code is ErrorCode.CONSTRAINT_SCHEMA_INVALID
    assert raised.value.failure.details == {"violations": ["Value error, must not be negative"]}


def test_stream_yields_events_up_to_the_response(client):
    events = list(client.stream(chat_request("hi")))
    assert [event.WhichOneof("event") for event in events] == ["content_delta", "completed"]


def test_leaving_a_stream_early_cancels_the_request(client, orchestrator):
    stream = client.stream(chat_request("hang"))
    assert next(stream).content_delta.text == "hel"
    stream.close()
    assert orchestrator.cancelled.wait(5)


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
