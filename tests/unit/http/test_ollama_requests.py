"""Requests of Ollama's clients, and the requests of the orchestrator that they become."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.ollama.forms import GenerateForm, OllamaChatForm
from gateway.http.ollama.requests import chat_request_of, generate_request_of
from gateway.http.openai.forms import read_form
from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from tests.support.sample_images import GIF, sample_image
from tests.unit.http.test_requests import CLOCK, JSON_VALUES

SYSTEM, USER = message_pb2.ROLE_SYSTEM, message_pb2.ROLE_USER
ASSISTANT, TOOL = message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL
PICTURE = base64.b64encode(sample_image(GIF)).decode()
HI = {"role": "user", "content": "hi"}


def form_of(*messages, **fields):
    return read_form({"model": "m", "messages": list(messages) or [HI], **fields}, OllamaChatForm)


def chat(*messages, **fields):
    return chat_request_of(form_of(*messages, **fields), "alias", 60.0)


def generate(prompt="hi", **fields):
    return generate_request_of(read_form({"model": "m", "prompt": prompt, **fields}, GenerateForm), "alias", 60.0)


def said(made):
    return [(message.role, message.content) for message in made.messages]


def calling(*names, **fields):
    calls = [{"function": {"name": name, "arguments": {"a": 1}}, **fields} for name in names]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(content, **fields):
    return {"role": "tool", "content": content, **fields}


def test_a_prompt_and_its_system_are_a_chat():
    assert said(generate(system="be brief")) == [(SYSTEM, "be brief"), (USER, "hi")]
    assert said(generate()) == [(USER, "hi")]


def test_a_raw_prompt_is_continued_as_it_is():
    made = generate(raw=True, format="json", options={"num_predict": 5, "top_k": 3, "stop": ["\n"]})
    assert (made.text_prompt, list(made.messages), made.mode) == ("hi", [], execution_pb2.MODE_CHAT)
    assert (made.hints.max_tokens, made.hints.top_k, made.hints.stop, made.hints.model) == (5, 3, ["\n"], "alias")
    assert json.loads(made.output.schema_json) == {"type": "object"}
    assert generate(raw=True).hints.max_tokens == 0


def test_thinking_and_calls_are_kept():
    made = chat(HI, calling("clock") | {"thinking": "hm"}, result("noon"))
    message = made.messages[1]
    [call] = message.tool_calls
    assert (message.role, message.reasoning) == (ASSISTANT, "hm")
    assert (call.name, json.loads(call.arguments_json)) == ("clock", {"a": 1})
    assert [tool.name for tool in chat(tools=[CLOCK]).client_tools] == ["clock"]


@pytest.mark.parametrize(
    ("results", "names"),
    [
        ([result("1"), result("2"), result("3")], ["clock", "lamp", "clock"]),
        ([result("1", tool_name="lamp"), result("2"), result("3")], ["lamp", "clock", "clock"]),
    ],
)
def test_results_answer_the_calls_that_wait_by_name_or_in_their_order(results, names):
    made = chat(HI, calling("clock", "lamp", "clock"), *results)
    answered = [message.tool_call_id for message in made.messages[2:]]
    assert [message.name for message in made.messages[2:]] == names
    assert sorted(answered) == sorted(call.id for call in made.messages[1].tool_calls)


def test_a_result_may_name_its_call():
    made = chat(HI, calling("clock", id="c1"), result("1", tool_call_id="c1"))
    assert (made.messages[2].tool_call_id, made.messages[2].name) == ("c1", "clock")


def test_options_are_hints_and_others_are_named():
    options = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 3,
        "num_predict": 9,
        "stop": ["a"],
    }
    options |= {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    hints = chat(options=options).hints
    assert (hints.model, hints.seed, hints.max_tokens, list(hints.stop)) == ("alias", 3, 9, ["a"])
    assert (hints.temperature, hints.top_p, hints.top_k, hints.min_p) == (0.5, 0.25, 7, 0.125)
    assert (hints.repetition_penalty, hints.presence_penalty, hints.frequency_penalty) == (1.5, 0.5, 0.25)
    ignored = form_of(options={"num_ctx": 1, "seed": 1}, keep_alive="5m").ignored
    assert ignored == ["keep_alive", "options.num_ctx"]


@pytest.mark.parametrize("most", [-2, -1, 0, None])
def test_a_number_of_tokens_that_is_no_limit_is_the_default(most):
    assert chat(options={"num_predict": most}).hints.max_tokens == 0


@pytest.mark.parametrize(
    ("asked", "mode", "schema"),
    [
        ("", execution_pb2.MODE_CHAT, None),
        ("json", execution_pb2.MODE_STRUCTURED, {"type": "object"}),
        ({"type": "string"}, execution_pb2.MODE_STRUCTURED, {"type": "string"}),
    ],
)
def test_a_format_is_the_output_contract(asked, mode, schema):
    for made in (chat(format=asked), generate(format=asked)):
        assert (made.mode, json.loads(made.output.schema_json or "null")) == (mode, schema)


@pytest.mark.parametrize(
    ("think", "mode"),
    [
        (None, generation_pb2.REASONING_MODE_UNSPECIFIED),
        (False, generation_pb2.REASONING_MODE_OFF),
        (True, generation_pb2.REASONING_MODE_ON),
        ("low", generation_pb2.REASONING_MODE_ON),
    ],
)
def test_think_is_reasoning(think, mode):
    assert chat(think=think).hints.reasoning.mode == mode


def test_a_stream_is_what_clients_get_if_they_say_nothing():
    assert form_of().streams
    assert not form_of(stream=False).streams


def test_images_come_before_the_text_with_the_type_that_they_begin_like():
    for made in (chat({**HI, "images": [PICTURE]}), generate(images=[PICTURE])):
        image, text = made.messages[-1].parts
        assert (image.image.media_type, image.image.data) == ("image/gif", sample_image(GIF))
        assert text.text == HI["content"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: generate(raw=True, system="be brief"), "^system and raw are both set"),
        (lambda: generate(raw=True, suffix="}"), "^suffix is set"),
        (lambda: generate(raw=True, images=[PICTURE]), "^images and raw are both set"),
        (lambda: generate(suffix="}"), "^suffix is set"),
        (lambda: generate(images=["aGk="]), r"^images\[0\] is no PNG"),
        (lambda: generate(images=["?"]), r"^images\[0\] is no PNG"),
        (lambda: chat({**HI, "images": ["aGk="]}), r"^messages\[0\]\.images\[0\] is no PNG"),
        (lambda: chat(HI, {"role": "assistant", "images": [PICTURE]}, HI), "only a user's messages have images"),
        (lambda: chat(HI, result("noon")), r"^messages\[1\] is the result of ''"),
        (lambda: chat(HI, calling("clock"), result("on", tool_name="lamp")), r"^messages\[2\] is the result of 'lamp'"),
        (lambda: chat(HI, calling("clock"), result("1"), result("2")), r"^messages\[3\] is the result of ''"),
        (lambda: chat(options={"num_predict": -3}), r"^options\.num_predict: "),
        (lambda: chat(format="yaml"), "^format: "),
        (lambda: chat(tools=[{"type": "sorcery"}]), r"^tools\[0\] has the type 'sorcery'"),
    ],
)
def test_a_request_that_cannot_be_done_is_refused_by_its_place(made, words):
    with pytest.raises(InvalidRequest, match=words):
        made()


@given(
    st.dictionaries(st.sampled_from(sorted({*OllamaChatForm.model_fields, *GenerateForm.model_fields})), JSON_VALUES)
)
def test_any_object_is_a_request_or_refused(fields):
    for make in (chat, generate):
        try:
            make(**fields)
        except InvalidRequest:
            continue
