"""Requests of `/v1/responses`, and the requests of the orchestrator that they become."""

import json

import pytest

from gateway.http.openai.forms import read_form
from gateway.http.openai.pages import page_of
from gateway.http.openai.responses.forms import ResponseForm, SummaryForm
from gateway.http.openai.responses.items import call_item, items_of_messages
from gateway.http.openai.responses.requests import head_of, system_request_of
from gateway.http.openai.responses.summaries import ask_for_summary
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest, NotFound
from pagantic_common.domain.images import image_of
from tests.support.sample_images import sample_image

USER, ASSISTANT, TOOL = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL
CALL = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": '{"zone":"UTC"}'}
SPAWN = {"type": "function", "name": "spawn", "description": "Starts an agent.", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [SPAWN | {"strict": False}]}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}


def form_of(**fields):
    return read_form({"input": "hi", **fields}, ResponseForm)


def request(earlier=(), *, stored=False, **fields):
    return system_request_of(form_of(**fields), "", 60.0, earlier, stored=stored)


def said(made):
    return [(message.role, message.content) for message in made.messages]


def test_a_text_is_the_users_message():
    assert said(request()) == [(USER, "hi")]


def test_items_are_messages_calls_and_outputs():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "What "}, {"type": "input_text", "text": "time?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a clock"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        CALL,
        {**CALL, "call_id": "c2"},
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "midnight"}]},
    ]
    made = request(input=items)
    assert said(made) == [(USER, "What time?"), (ASSISTANT, "Let me see."), (TOOL, "noon"), (TOOL, "midnight")]
    assert [call.id for call in made.messages[1].tool_calls] == ["c1", "c2"]
    assert (made.messages[1].reasoning, made.messages[2].name) == ("a clock", "clock")


def test_what_was_said_before_comes_first_and_names_its_calls():
    call = message_pb2.ToolCall(id="c1", name="clock", arguments_json="{}")
    earlier = [message_pb2.Message(role=ASSISTANT, tool_calls=[call])]
    assert said(request(earlier, input=[OUTPUT])) == [(ASSISTANT, ""), (TOOL, "noon")]
    made = request(earlier, stored=True, input=[OUTPUT], conversation="conv_1")
    assert (said(made), made.messages[0].name, made.session_id) == ([(TOOL, "noon")], "clock", "conv_1")


def test_fields_of_a_response_are_those_of_the_contract():
    made = request(
        instructions="Be brief.",
        tools=[{"type": "function", "name": "clock", "parameters": {"type": "object"}}],
        tool_choice={"type": "function", "name": "clock"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        max_output_tokens=7,
        reasoning={"effort": "none"},
        top_logprobs=2,
        background=True,
    )
    assert (made.prompt.text, made.client_tools[0].name, made.hints.tool_choice.tool_name) == (
        *("Be brief.", "clock"),
        "clock",
    )
    assert json.loads(made.output.schema_json) == {"type": "object"}
    assert (made.mode, made.hints.max_tokens, made.hints.top_logprobs) == (execution_pb2.MODE_STRUCTURED, 7, 2)
    assert made.background


def test_a_prompt_is_a_template_of_the_deployment():
    variables = {"name": "Ana", "day": {"type": "input_text", "text": "Mon"}}
    made = request(prompt={"id": "greeting", "variables": variables})
    assert made.prompt.template.name == "greeting"
    assert dict(made.prompt.template.variables) == {"name": "Ana", "day": "Mon"}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"input": None}, "input is missing"),
        ({"input": []}, "input is missing"),
        ({"input": [{"content": "hi"}]}, r"input\[0\].role is missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, r"input\[0\]\[0\] has the type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "is no data URL"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r"input\[0\] has the type 'item_reference': send message"),
        ({"input": [{**CALL, "call_id": None}]}, r"input\[0\].call_id is missing"),
        ({"input": [OUTPUT]}, "no tool call of a message before"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "not of this API"),
        ({"tools": [{"type": "sorcery"}]}, r"tools\[0\] has the type 'sorcery'"),
        ({"tools": [{"type": "namespace", "tools": []}]}, r"tools\[0\].name is missing"),
        ({"tools": [NAMESPACE | {"tools": [NAMESPACE]}]}, r"tools\[0\].tools\[0\] has the type 'namespace'"),
        ({"tools": [SPAWN, SPAWN]}, "tools has the name 'spawn' twice"),
        ({"tool_choice": "required"}, "there is no tool to call"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "there is no tool to call"),
        ({"tool_choice": {"type": "web_search"}, "tools": [SPAWN]}, "tool_choice has the type 'web_search'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name is missing"),
        ({"previous_response_id": "a", "conversation": "b"}, "both set"),
        ({"prompt": {"id": "a"}, "instructions": "b"}, "both set"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_place(fields, place):
    with pytest.raises(InvalidRequest, match=place):
        request(**fields)


def test_a_stored_response_keeps_what_it_repeats():
    form = form_of(metadata={"a": "b"}, temperature=0.5, unknown=1, conversation={"id": "conv_1"})
    sent = execution_pb2.SystemRequest(request_id="r")
    head = head_of(form, sent, 7)
    assert sent.keep_request
    assert json.loads(sent.metadata["openai.request"]) == head.echo
    told = head.running()
    assert (told["id"], told["metadata"], told["temperature"]) == ("resp_r", {"a": "b"}, 0.5)
    assert (told["conversation"], head.ignored) == ({"id": "conv_1"}, ("unknown",))
    sent = execution_pb2.SystemRequest(request_id="r")
    head_of(form_of(store=False), sent, 7)
    assert not sent.keep_request
    assert not sent.metadata


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tool_choice": "auto"}, {"tools": [], "tool_choice": "none"}])
def test_a_request_that_names_no_tools_is_offered_none_whatever_it_chooses(fields):
    assert request(**fields).hints.tool_choice.mode == message_pb2.TOOL_CHOICE_MODE_NONE


def test_functions_of_a_namespace_are_functions_and_their_calls_are_named_as_they_were_sent():
    call = {**CALL, "name": "spawn", "namespace": "agents"}
    form = form_of(tools=[NAMESPACE, {"type": "function", "name": "exec"}], input=[call, OUTPUT], store=True)
    sent = system_request_of(form, "", 60.0, ())
    assert [tool.name for tool in sent.client_tools] == ["spawn", "exec"]
    assert (sent.messages[0].tool_calls[0].name, sent.messages[1].name) == ("spawn", "spawn")
    head = head_of(form, sent, 7)
    assert (head.echo, head.ignored) == (
        json.loads(sent.metadata["openai.request"]),
        ("tools[].description", "tools[].tools[].strict"),
    )
    told = head.running()
    assert told["tools"] == [
        {**NAMESPACE, "tools": [SPAWN | {"strict": False}]},
        {"type": "function", "name": "exec", "description": None, "parameters": None, "strict": None},
    ]
    item = call_item("fc_1", message_pb2.ToolCall(id="c", name="spawn", arguments_json="{}"))
    assert (head.as_named(item)["name"], item["namespace"]) == ("spawn", "agents")
    item = call_item("fc_1", message_pb2.ToolCall(id="c", name="exec", arguments_json="{}"))
    assert "namespace" not in head.as_named(item)


def test_a_function_of_a_namespace_whose_name_is_taken_is_offered_with_its_namespace():
    other = NAMESPACE | {"name": "a" * 63}
    form = form_of(tools=[NAMESPACE, SPAWN, other])
    sent = system_request_of(form, "", 60.0, ())
    assert [tool.name for tool in sent.client_tools] == ["agents__spawn", "spawn", "a" * 63 + "_"]
    item = call_item("fc_1", message_pb2.ToolCall(id="c", name="agents__spawn", arguments_json="{}"))
    told = head_of(form, sent, 7).as_named(item)
    assert (told["name"], told["namespace"]) == ("spawn", "agents")
    call = {**CALL, "name": "spawn", "namespace": "agents"}
    assert request(tools=[NAMESPACE, SPAWN], input=[call, OUTPUT]).messages[0].tool_calls[0].name == "agents__spawn"


def test_tools_that_openai_runs_are_left_out_and_named():
    types = ("web_search", "web_search_preview_2025_03_11", "file_search", "mcp", "custom", "local_shell")
    fields = {"tools": [SPAWN, *({"type": kind, "name": "a", "external_web_access": True} for kind in types)]}
    assert [tool.name for tool in request(**fields).client_tools] == ["spawn"]
    assert form_of(**fields).ignored == sorted(f"tools[].type={kind}" for kind in types)
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "web_search"}, {"type": "function", "name": "spawn"}],
    }
    made = request(**fields, tool_choice=choice)
    assert ([tool.name for tool in made.client_tools], made.hints.tool_choice.mode) == (
        ["spawn"],
        message_pb2.TOOL_CHOICE_MODE_AUTO,
    )


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "name": "n", "schema": SCHEMA},
        {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": False, "description": "A letter."},
        {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
    ],
)
def test_a_response_has_its_format_as_it_was_sent(sent):
    form = form_of(text={"format": sent})
    assert head_of(form, system_request_of(form, "", 60.0, ()), 7).running()["text"] == {"format": sent}


def test_a_response_has_the_format_of_its_extension_where_none_was_sent():
    form = form_of(pagantic={"output": {"schema_json": json.dumps(SCHEMA)}})
    told = head_of(form, system_request_of(form, "", 60.0, ()), 7).running()
    assert told["text"]["format"] == {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}
    form = form_of()
    assert head_of(form, system_request_of(form, "", 60.0, ()), 7).running()["text"] == {"format": {"type": "text"}}


@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": False}, {"strict": None}])
@pytest.mark.parametrize("parameters", [{"type": "object", "properties": {}}, SCHEMA])
def test_a_response_has_its_functions_as_they_were_sent(strict, parameters):
    form = form_of(tools=[{**SPAWN, "parameters": parameters, **strict}])
    told = head_of(form, system_request_of(form, "", 60.0, ()), 7).running()
    assert told["tools"] == [{**SPAWN, "parameters": parameters, "strict": strict.get("strict")}]


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"include": ["message.output_text.logprobs"]}, []),
        ({"include": ["reasoning.encrypted_content"]}, ["include=reasoning.encrypted_content"]),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, ["reasoning.effort", "reasoning.summary"]),
        ({"reasoning": {"effort": "none"}}, []),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, ["text.verbosity"]),
        (
            {"input": [{"role": "user", "content": "hi", "id": "msg_1", "status": "completed"}]},
            ["input[].id", "input[].status"],
        ),
        (
            {"input": [CALL | {"namespace": "agents"}], "tools": [NAMESPACE]},
            ["tools[].description", "tools[].tools[].strict"],
        ),
        ({"input": [CALL | {"namespace": "agents"}]}, ["input[].namespace"]),
        ({"tool_choice": "auto"}, ["tool_choice"]),
    ],
)
def test_fields_without_effect_are_named_at_every_depth(fields, ignored):
    assert form_of(**fields).ignored == ignored


def test_a_summary_is_text_whatever_the_format_and_tools_of_a_request():
    fields = {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, "tools": [SPAWN]}
    made = request(**fields)
    ask_for_summary(made)
    assert (made.output.schema_json, list(made.client_tools)) == ("", [])
    assert read_form({"input": "hi", **fields}, SummaryForm).ignored == ["text", "tools"]


ITEMS = [{"id": f"i{n}"} for n in range(5)]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, "43210", False),
        ({"order": "asc", "limit": "2"}, "01", True),
        ({"order": "asc", "limit": "2", "after": "i1"}, "23", True),
        ({"limit": "3", "after": "i2"}, "10", False),
        ({"after": "i0"}, "", False),
    ],
)
def test_lists_come_in_pages(query, ids, has_more):
    page = page_of(ITEMS, query)
    assert ("".join(item["id"][1] for item in page["data"]), page["has_more"]) == (ids, has_more)


@pytest.mark.parametrize("query", [{"order": "up"}, {"limit": "-1"}, {"limit": "101"}, {"limit": "x"}])
def test_a_page_that_cannot_be_is_refused(query):
    with pytest.raises(InvalidRequest):
        page_of(ITEMS, query)
    with pytest.raises(NotFound):
        page_of(ITEMS, {"after": "unknown"})


def test_messages_are_items_again():
    items = [{"role": "user", "content": "What time?"}, CALL, OUTPUT]
    told = items_of_messages(request(input=items).messages, "r")
    assert [item["type"] for item in told] == ["message", "function_call", "function_call_output"]
    assert len({item["id"] for item in told}) == len(told)
    assert said(request(input=told)) == said(request(input=items))


def test_an_image_keeps_its_place_and_is_an_item_again():
    url = image_of("image/png", sample_image()).url
    content = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url}]
    made = request(input=[{"role": "user", "content": content}])
    assert [part.WhichOneof("part") for part in made.messages[0].parts] == ["text", "image"]
    (told,) = items_of_messages(made.messages, "r")
    assert [part["type"] for part in told["content"]] == ["input_text", "input_image"]
    assert list(request(input=[told]).messages) == list(made.messages)
