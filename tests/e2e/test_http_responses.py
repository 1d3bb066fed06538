"""OpenAI's responses before the real system, through two gateways that know nothing of each other."""

import json
import random
from contextlib import ExitStack, contextmanager

import openai
import pytest

from tests.e2e.test_http import COLOR, WEATHER
from tests.support.gateway_process import serving_gateway

SHORT = {"model": "gpt-4o", "max_output_tokens": 40, "temperature": 0}
TOOL = {"type": "function", **WEATHER["function"], "strict": True}
CLIENTS = 12


@contextmanager
def serving(system):
    with (
        serving_gateway(system.environment) as url,
        openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=120) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def clients(system):
    """Two gateways, each with a client."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(system)) for _ in range(2)]


def text_in(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


@pytest.mark.whole
def test_a_response_is_found_by_another_gateway_and_gone_on_from(clients):
    one, other = clients
    first = one.responses.create(input="My name is Ana.", **SHORT)
    assert other.responses.retrieve(first.id).output_text == first.output_text
    second = other.responses.create(input="What is my name?", previous_response_id=first.id, **SHORT)
    items = one.responses.input_items.list(second.id, order="asc")
    said = [item.content[0].text for item in items.data]
    assert said == ["My name is Ana.", first.output_text, "What is my name?"]
    assert second.usage.input_tokens > first.usage.input_tokens
    other.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        one.responses.retrieve(first.id)


def test_a_schema_and_a_tool_bind_the_answer(clients):
    text_format = {"format": {"type": "json_schema", "name": "color", "schema": COLOR, "strict": True}}
    made = clients[0].responses.create(input="Which color is a ripe tomato?", text=text_format, **SHORT)
    assert json.loads(made.output_text)["color"] in ("red", "green", "blue")
    assert made.pagantic["guarantee"] == "ENFORCED"
    called = clients[0].responses.create(
        input="What is the weather in Paris?", tools=[TOOL], tool_choice="required", **SHORT
    )
    [call] = [item for item in called.output if item.type == "function_call"]
    assert list(json.loads(call.arguments)) == ["city"]


def test_lost_streams_go_on_elsewhere_and_tell_every_event_once(clients):
    choose = random.Random(17)  # noqa: S311 - no secret
    for number in range(CLIENTS):
        stream = clients[0].responses.create(input=f"Count from {number}.", stream=True, background=True, **SHORT)
        seen, leaves_after = [], choose.randint(1, 30)
        for event in stream:
            seen.append(event)
            if len(seen) == leaves_after:
                break
        stream.close()
        response_id, last = seen[0].response.id, seen[-1].sequence_number
        seen += clients[1].responses.retrieve(response_id, stream=True, starting_after=last)
        ended = seen[-1].response
        assert text_in(seen) == ended.output_text == clients[1].responses.retrieve(response_id).output_text
        numbers = [event.sequence_number for event in seen]
        assert numbers == sorted(set(numbers))
        kinds = [event.type for event in seen if not event.type.endswith(".delta")]
        again = clients[0].responses.retrieve(response_id, stream=True)
        assert kinds == [event.type for event in again if not event.type.endswith(".delta")]


def test_a_conversation_remembers_through_both_gateways(clients):
    one, other = clients
    talk = one.conversations.create(items=[{"role": "user", "content": "I like red."}], metadata={"topic": "colors"})
    made = other.responses.create(input="Which color do I like?", conversation=talk.id, **SHORT)
    items = one.conversations.items.list(talk.id, order="asc").data
    assert [item.content[0].text for item in items] == ["I like red.", "Which color do I like?", made.output_text]
    one.conversations.delete(talk.id)
