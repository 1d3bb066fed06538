import json

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from services.inference.core.chat import plain_messages, template_messages, template_tools
from services.inference.core.tool_calls import CallWatch, call_schema, offered_tools, parse_calls

CLOCK = ToolDefinition("clock", "Tells the time.", '{"type":"object","properties":{"zone":{"type":"string"}}}')
MATHS = ToolDefinition("maths", "Calculates.", '{"type":"object"}')
CALL = '{"name":"clock","arguments":{"zone":"UTC"}}'


@pytest.mark.parametrize(
    "text",
    [CALL, f"```json\n{CALL}\n```", f"<tool_call>\n{CALL}\n</tool_call>", f"[{CALL}]", CALL.replace("arg", "arg")],
)
def test_calls_are_read_in_every_form_that_models_use(text):
    assert parse_calls(text, ["clock"]) == [("clock", '{"zone":"UTC"}')]


@pytest.mark.parametrize(
    "text",
    [
        "It is noon.",
        '{"name":"other","arguments":{}}',
        "{",
        '{"name":"clock","arguments":3}',
        '{"name":"clock","arguments":{"n":1e999}}',
        '{"name":"clock","arguments":{"s":"\\ud800"}}',
    ],
)
def test_what_is_no_call_of_an_offered_tool_is_an_answer(text):
    assert parse_calls(text, ["clock"]) == []


def test_the_call_schema_allows_exactly_the_offered_tools():
    one = json.loads(call_schema([CLOCK]))
    assert one["properties"]["name"] == {"const": "clock"}
    both = json.loads(call_schema([CLOCK, MATHS]))
    assert [variant["properties"]["name"]["const"] for variant in both["anyOf"]] == ["clock", "maths"]


def test_tool_choice_decides_what_is_offered():
    tools = [CLOCK, MATHS]
    assert offered_tools(tools, ToolChoice(tool_name="maths")) == (MATHS,)
    assert offered_tools(tools, ToolChoice(ToolChoiceMode.NONE)) == ()
    assert offered_tools(tools, ToolChoice()) == (CLOCK, MATHS)
    with pytest.raises(InvalidRequest) as unknown:
        offered_tools(tools, ToolChoice(tool_name="x"))
    assert unknown.value.code is ErrorCode.TOOL_NOT_FOUND
    with pytest.raises(InvalidRequest, match="no tool is offered"):
        offered_tools([], ToolChoice(ToolChoiceMode.REQUIRED))


def test_an_answer_streams_and_a_call_does_not():
    watch = CallWatch(["clock"], is_enforced=False)
    assert [watch.feed("It "), watch.feed("is")] == ["It ", "is"]
    assert watch.finish() == ("", [])
    watch = CallWatch(["clock"], is_enforced=False)
    assert "".join(watch.feed(character) for character in CALL) == ""
    assert watch.finish() == ("", [("clock", '{"zone":"UTC"}')])


def test_text_that_only_looked_like_a_call_is_given_out_in_the_end():
    watch = CallWatch(["clock"], is_enforced=False)
    assert watch.feed('{"a": 1}') == ""
    assert watch.finish() == ('{"a": 1}', [])


def test_without_tools_text_passes_through():
    watch = CallWatch([], is_enforced=False)
    assert watch.feed("{") == "{"


def test_a_template_without_tools_gets_calls_and_results_as_text():
    messages = [
        Message(Role.USER, "time?"),
        Message(Role.ASSISTANT, tool_calls=(ToolCall("1", "clock", '{"zone":"UTC"}'),)),
        Message(Role.TOOL, "noon", tool_call_id="1", name="clock"),
    ]
    plain = plain_messages(messages, [CLOCK])
    assert plain[0]["role"] == "system"
    assert "- clock: Tells the time." in plain[0]["content"]
    assert plain[2] == {"role": "assistant", "content": CALL}
    assert plain[3] == {"role": "user", "content": "Result of clock: noon"}
    known = template_messages(messages)
    assert known[1]["tool_calls"][0]["function"] == {"name": "clock", "arguments": {"zone": "UTC"}}
    assert known[2]["tool_call_id"] == "1"
    assert template_tools([CLOCK])[0]["function"]["name"] == "clock"
