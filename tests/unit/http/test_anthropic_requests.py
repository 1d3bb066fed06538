"""Requests of Anthropic's clients, and the requests of the orchestrator that they become."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.anthropic.answers import error_body
from gateway.http.anthropic.forms import MessagesForm
from gateway.http.anthropic.requests import system_request_of
from gateway.http.failures import error_of
from gateway.http.openai.forms import read_form
from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from tests.support.sample_images import sample_image
from tests.unit.http.test_requests import JSON_VALUES, NO_PARAMETERS

SYSTEM, USER = message_pb2.ROLE_SYSTEM, message_pb2.ROLE_USER
ASSISTANT, TOOL = message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL
HI = {"role": "user", "content": "hi"}
ZONE = {"type": "object", "properties": {"zone": {"type": "string"}}}
CLOCK = {"name": "clock", "description": "Tells the time.", "input_schema": ZONE}
CALL = {"type": "tool_use", "id": "c1", "name": "clock", "input": {"zone": "UTC"}}
CALLING = {"role": "assistant", "content": [CALL]}


def form_of(**fields):
    return read_form({"model": "m", "max_tokens": 9, "messages": [HI], **fields}, MessagesForm)


def request(*messages, **fields):
    return system_request_of(form_of(**{"messages": list(messages) or [HI], **fields}), "alias", 60.0)


def said(made):
    return [(message.role, message.content) for message in made.messages]


def heard(*blocks):
    return {"role": "user", "content": list(blocks)}


def result(content="noon", call_id="c1"):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def text(words):
    return {"type": "text", "text": words}


def test_text_and_system_are_messages():
    assert said(request(system="be brief")) == [(SYSTEM, "be brief"), (USER, "hi")]
    made = request(heard(text("a"), text("b")), system=[text("be "), text("brief")])
    assert said(made) == [(SYSTEM, "be brief"), (USER, "ab")]


def test_thinking_text_and_calls_are_the_assistants_message():
    blocks = [{"type": "thinking", "thinking": "a clock", "signature": "x"}, text("Let me see."), CALL]
    made = request(HI, {"role": "assistant", "content": blocks}, heard(result()))
    message = made.messages[1]
    [call] = message.tool_calls
    assert (message.role, message.content, message.reasoning) == (ASSISTANT, "Let me see.", "a clock")
    assert (call.id, call.name, json.loads(call.arguments_json)) == ("c1", "clock", {"zone": "UTC"})


def test_results_are_messages_of_the_tools_before_the_users_text():
    calls = {"role": "assistant", "content": [CALL, {**CALL, "id": "c2"}]}
    made = request(HI, calls, heard(result(), result([text("mid"), text("night")], "c2"), text("so?")))
    assert said(made)[2:] == [(TOOL, "noon"), (TOOL, "midnight"), (USER, "so?")]
    assert [message.name for message in made.messages[2:4]] == ["clock", "clock"]


@pytest.mark.parametrize("content", [None, "", []])
def test_a_result_may_be_empty(content):
    assert said(request(HI, CALLING, heard(result(content))))[-1] == (TOOL, "")
    assert said(request(HI, CALLING, heard(result(content), text(""))))[-1] == (TOOL, "")


@pytest.mark.parametrize("content", ["", [], [text("")]])
def test_a_message_may_be_empty(content):
    empty = {"role": "user", "content": content}
    assert said(request(empty, {**empty, "role": "assistant"}, HI)) == [(USER, ""), (ASSISTANT, ""), (USER, "hi")]


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        ("auto", message_pb2.TOOL_CHOICE_MODE_AUTO),
        ("any", message_pb2.TOOL_CHOICE_MODE_REQUIRED),
        ("none", message_pb2.TOOL_CHOICE_MODE_NONE),
    ],
)
def test_a_choice_is_a_mode(choice, mode):
    made = request(tools=[CLOCK], tool_choice={"type": choice, "disable_parallel_tool_use": True})
    assert made.hints.tool_choice.mode == mode
    [tool] = made.client_tools
    assert (tool.name, tool.description, json.loads(tool.parameters_json)) == (
        "clock",
        "Tells the time.",
        ZONE,
    )


@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "none"}, {}])
def test_a_request_that_names_no_tools_is_offered_none_whatever_it_chooses(choice):
    assert request(tool_choice=choice).hints.tool_choice.mode == message_pb2.TOOL_CHOICE_MODE_NONE


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "calculator"}])
def test_a_demand_for_a_call_without_tools_is_refused(choice):
    with pytest.raises(InvalidRequest, match=r"^tool_choice asks for a call, but there is no tool to call"):
        request(tool_choice=choice)


@pytest.mark.parametrize("schema", [{}, {"input_schema": None}, {"input_schema": {"type": "object"}}])
def test_a_tool_without_parameters_takes_none(schema):
    (tool,) = request(tools=[{"name": "ping", **schema}]).client_tools
    assert json.loads(tool.parameters_json) == NO_PARAMETERS


def test_tools_of_anthropic_are_left_out_and_named():
    types = ("web_search_20250305", "bash_20250124", "mcp_toolset", "tool_search_tool_bm25")
    fields = {"tools": [CLOCK, *({"type": kind, "name": kind} for kind in types)]}
    assert [tool.name for tool in request(**fields).client_tools] == ["clock"]
    assert form_of(**fields).ignored == sorted(f"tools[].type={kind}" for kind in types)


def test_a_system_message_keeps_its_place_among_the_messages():
    short = {"role": "system", "content": [text("Be "), text("short.")]}
    assert said(request(HI, short, HI)) == [(USER, "hi"), (SYSTEM, "Be short."), (USER, "hi")]
    assert said(request(HI, {"role": "system", "content": "Go on."})) == [(USER, "hi"), (USER, "Go on.")]
    with pytest.raises(
        InvalidRequest, match=r"^messages\[1\]\.content\[0\] has the type 'image': models here read text"
    ):
        request(HI, {"role": "system", "content": [{"type": "image"}]})


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_a"}])
def test_a_thread_is_refused_in_the_words_after_which_clients_send_all_messages(thread):
    with pytest.raises(InvalidRequest, match=r"^thread is set: ") as refused:
        request(thread=thread)
    body = error_body(error_of(refused.value), 400, "r")
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert request(thread=None).messages


def test_errors_without_a_code_of_this_api_have_no_details_of_it():
    assert "details" not in error_body(error_of(InvalidRequest("a", details={"b": "c"})), 400, "r")["error"]


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"metadata": {"user_id": "u"}}, ["metadata"]),
        ({"metadata": {"user_id": "u"}, "pagantic": {"keep_request": True}}, []),
        ({"system": [text("a") | {"cache_control": {"type": "ephemeral"}}]}, ["system[].cache_control"]),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, ["thinking.budget_tokens"]),
        ({"tools": [CLOCK | {"strict": False}]}, ["tools[].strict"]),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            ["tool_choice.disable_parallel_tool_use"],
        ),
        (
            {"messages": [heard(text("a") | {"cache_control": {}, "citations": None}, text("b") | {"id": "c"})]},
            ["messages[].content[].cache_control", "messages[].content[].id"],
        ),
    ],
)
def test_fields_without_effect_are_named_at_every_depth(fields, ignored):
    assert form_of(**fields).ignored == ignored


def test_a_choice_may_name_a_tool():
    assert request(tools=[CLOCK], tool_choice={"type": "tool", "name": "clock"}).hints.tool_choice.tool_name == "clock"


def test_limits_and_sampling_are_hints():
    sampling = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop_sequences": ["a", "b"]}
    hints = request(**sampling).hints
    assert (hints.model, hints.max_tokens, list(hints.stop)) == ("alias", 9, ["a", "b"])
    assert (hints.temperature, hints.top_p, hints.top_k) == (0.5, 0.25, 7)


@pytest.mark.parametrize(
    ("thinking", "mode", "most"),
    [
        (None, generation_pb2.REASONING_MODE_UNSPECIFIED, 0),
        ({"type": "adaptive"}, generation_pb2.REASONING_MODE_UNSPECIFIED, 0),
        ({"type": "disabled"}, generation_pb2.REASONING_MODE_OFF, 0),
        ({"type": "enabled", "budget_tokens": 1024}, generation_pb2.REASONING_MODE_ON, 1024),
    ],
)
def test_thinking_is_reasoning(thinking, mode, most):
    reasoning = request(thinking=thinking).hints.reasoning
    assert (reasoning.mode, reasoning.max_tokens) == (mode, most)


def test_a_schema_of_the_answer_is_the_output_contract():
    made = request(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert (made.mode, json.loads(made.output.schema_json)) == (execution_pb2.MODE_STRUCTURED, {"type": "object"})


def test_metadata_is_kept_with_a_request_that_is_kept():
    metadata = {"user_id": "u1"}
    assert not request(metadata=metadata).metadata
    assert dict(request(metadata=metadata, pagantic={"keep_request": True}).metadata) == metadata


def test_the_extension_is_a_request_of_the_orchestrator():
    made = request(pagantic={"mode": "MODE_REDUNDANT", "voting": {"n": 3}, "request_id": "mine"})
    assert (made.mode, made.voting.n, made.request_id) == (execution_pb2.MODE_REDUNDANT, 3, "mine")


def test_an_image_keeps_its_place_among_the_blocks():
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(sample_image()).decode()}
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "source": source}, {"type": "text", "text": "b"}]
    (message,) = request(heard(*blocks)).messages
    assert [part.text for part in message.parts] == ["a", "", "b"]
    assert message.parts[1].image.data == sample_image()


def test_an_image_after_a_result_is_the_users():
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(sample_image()).decode()}
    made = request(HI, CALLING, heard(result("1"), {"type": "image", "source": source})).messages
    assert [message.role for message in made[2:]] == [message_pb2.ROLE_TOOL, message_pb2.ROLE_USER]
    assert made[3].parts[0].image.media_type == "image/png"


@pytest.mark.parametrize(
    ("messages", "fields", "words"),
    [
        ([HI, {"role": "assistant", "content": "a"}], {}, r"^messages\[1\]\.role is 'assistant'"),
        ([heard({"type": "image"})], {}, r"^messages\[0\]\.content\[0\]\.source is not of the type 'base64'"),
        ([heard({"type": "image", "source": {"type": "url", "url": "https://a.b/c"}})], {}, "addresses and files are"),
        ([heard({"type": "document"})], {}, r"^messages\[0\]\.content\[0\] has the type 'document': models here read"),
        ([heard(CALL)], {}, r"^messages\[0\]\.content\[0\] has the type 'tool_use'"),
        ([HI, {"role": "assistant", "content": [{"type": "tool_use"}]}, HI], {}, r"content\[0\]\.name is missing"),
        ([heard({"type": "text"})], {}, r"^messages\[0\]\.content\[0\]\.text is missing"),
        ([HI, CALLING, heard(result([{"type": "image"}]))], {}, r"^messages\[2\]\.content\[0\]\.content\[0\] has"),
        ([HI, CALLING, heard(result(call_id="c9"))], {}, "no tool call of a message before has this id"),
        ([HI], {"tools": [{"type": "web_search", "name": "web_search"}]}, r"^tools\[0\] has the type 'web_search'"),
        ([HI], {"tools": [{"input_schema": {}}]}, r"^tools\[0\]\.name is missing"),
        ([HI], {"tool_choice": {"type": "tool"}}, r"^tool_choice\.name is missing"),
        ([HI], {"max_tokens": 0}, "^max_tokens: "),
        ([HI], {"stop_sequences": ["a"] * 17}, "^stop_sequences: "),
        ([{"role": "tool", "content": "a"}], {}, r"^messages\[0\]\.role: "),
    ],
)
def test_a_request_that_cannot_be_done_is_refused_by_its_place(messages, fields, words):
    with pytest.raises(InvalidRequest, match=words):
        request(*messages, **fields)


@given(st.dictionaries(st.sampled_from(sorted(MessagesForm.model_fields)), JSON_VALUES))
def test_any_object_is_a_request_or_refused(fields):
    try:
        request(**fields)
    except InvalidRequest:
        return


@given(st.lists(st.dictionaries(st.sampled_from(["type", "text", "id", "name", "input", "content"]), JSON_VALUES)))
def test_any_blocks_are_messages_or_refused(blocks):
    try:
        request(heard(*blocks))
    except InvalidRequest:
        return
