import json

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from services.inference.core.prompts import (
    call_schema,
    offered_tools,
    plain_messages,
    template_messages,
    template_tools,
)

CLOCK = ToolDefinition("clock", "Tells the time.", '{"type":"object","properties":{"zone":{"type":"string"}}}')
MATHS = ToolDefinition("maths", "Calculates.", '{"type":"object"}')
CALL = '{"name":"clock","arguments":{"zone":"UTC"}}'


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


def test_a_template_gets_the_reasoning_of_earlier_turns_apart_from_their_content():
    entries = template_messages([Message(Role.USER, "time?"), Message(Role.ASSISTANT, "noon", reasoning="easy")])
    assert entries[0] == {"role": "user", "content": "time?"}
    assert entries[1] == {"role": "assistant", "content": "noon", "reasoning_content": "easy"}


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


def test_references_inside_the_parameters_hold_in_the_call_schema():
    parameters = {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place"},
            "$ref": {"type": "string"},
            "tree": {"$ref": "#"},
            "fixed": {"const": {"$ref": "#/$defs/Place"}},
        },
        "$defs": {"Place": {"type": "object", "properties": {"near": {"$ref": "#/$defs/Place"}}}},
    }
    nested = ToolDefinition("nested", "Nests.", json.dumps(parameters))
    (_, variant) = json.loads(call_schema([CLOCK, nested]))["anyOf"]
    arguments, path = variant["properties"]["arguments"], "#/anyOf/1/properties/arguments"
    assert arguments["properties"]["place"] == {"$ref": f"{path}/$defs/Place"}
    assert arguments["properties"]["tree"] == {"$ref": path}
    assert arguments["properties"]["$ref"] == {"type": "string"}
    assert arguments["properties"]["fixed"] == {"const": {"$ref": "#/$defs/Place"}}
    assert arguments["$defs"]["Place"]["properties"]["near"] == {"$ref": f"{path}/$defs/Place"}
