"""`pagantic serve` used by programs that others wrote for other servers, in Node.js and by LangChain."""

import json
from pathlib import Path

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from tests.support.gateway_process import serving_gateway
from tests.support.node_packages import installed

NODE = Path(__file__).parent / "node_http"
QUESTION = "Which color is a ripe tomato?"


class Person(BaseModel):
    """A person of the text."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=130)


@pytest.fixture(scope="module")
def gateway(system):
    with serving_gateway(system.environment) as url:
        yield url


@pytest.fixture(params=["chats", "responses"])
def model(request, gateway):
    """LangChain's model over either of OpenAI's APIs."""
    return ChatOpenAI(
        model="gpt-4o",
        base_url=gateway,
        api_key="any",
        temperature=0,
        max_tokens=60,
        max_retries=0,
        use_responses_api=request.param == "responses",
    )


def test_clients_in_node_chat_stream_call_tools_and_hold_to_schemas(system, gateway):
    program = installed(NODE) / "client.mjs"
    seen = json.loads(system.run("node", program, gateway.removesuffix("/v1")).stdout)

    own = seen["openai"]
    assert own["whole"] == own["streamed"] == own["response"]
    assert own["parsed"]["color"] in ("red", "green", "blue")
    assert len(own["calls"]) >= 1
    assert own["events"][0] == "response.created"
    assert own["events"][-1] in ("response.completed", "response.incomplete")
    assert own["refusal"] == {"kind": "BadRequestError", "status": 400, "code": "CONFIG_INVALID"}
    assert own["vectors"] == 2

    anthropic = seen["anthropic"]
    assert anthropic["whole"] == anthropic["streamed"] == own["whole"]
    assert anthropic["refusal"] == {"kind": "BadRequestError", "status": 400}
    assert seen["ollama"]["streamed"] == own["whole"]
    assert seen["ollama"]["object"]["color"] in ("red", "green", "blue")

    for by_the_ai_sdk in seen["aiSdk"].values():
        assert by_the_ai_sdk["whole"] == by_the_ai_sdk["streamed"] == own["whole"]
        assert by_the_ai_sdk["object"]["color"] in ("red", "green", "blue")
        assert len(by_the_ai_sdk["calls"]) == 1
        assert by_the_ai_sdk["usage"]["totalTokens"] > 0


def test_langchain_chats_and_streams(model):
    whole = model.invoke(QUESTION)
    assert whole.text
    assert whole.usage_metadata["total_tokens"] > whole.usage_metadata["input_tokens"] > 0
    assert "".join(part.text for part in model.stream(QUESTION)) == whole.text


def test_langchain_gets_objects_of_its_schema(model):
    person = model.with_structured_output(Person).invoke("Ana is 34 years old.")
    assert isinstance(person, Person)


def test_langchain_calls_tools_and_gives_their_results(model):
    @tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"It is sunny in {city}."

    asked = [("human", "What is the weather in Paris?")]
    called = model.bind_tools([weather], tool_choice="weather").invoke(asked)
    (call,) = called.tool_calls
    assert call["name"] == "weather"
    assert isinstance(call["args"]["city"], str)
    answer = model.bind_tools([weather]).invoke([*asked, called, weather.invoke(call)])
    assert answer.text or answer.tool_calls


def test_langchain_embeds(gateway):
    embedder = OpenAIEmbeddings(model="gpt-4o", base_url=gateway, api_key="any", check_embedding_ctx_length=False)
    tomato, banana = embedder.embed_documents(["a ripe tomato", "a yellow banana"])
    assert len(tomato) == len(banana) == 384
    assert embedder.embed_query("a ripe tomato") == pytest.approx(tomato, abs=1e-6)
