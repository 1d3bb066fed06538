import json
from dataclasses import replace

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from services.inference.core.generation import ChatPrompt
from services.inference.core.prompts import (
    TemplateInput,
    call_form_constraint,
    call_schema,
    offered_tools,
    plain_messages,
    template_input,
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
    plain = plain_messages(messages, [CLOCK], is_enforced=True)
    assert plain[0]["role"] == "system"
    assert "- clock: Tells the time." in plain[0]["content"]
    assert plain[2] == {"role": "assistant", "content": CALL}
    assert plain[3] == {"role": "user", "content": "Result of clock: noon"}
    known = template_messages(messages)
    assert known[1]["tool_calls"][0]["function"] == {"name": "clock", "arguments": {"zone": "UTC"}}
    assert known[2]["tool_call_id"] == "1"
    assert template_tools([CLOCK])[0]["function"]["name"] == "clock"


def test_offered_tools_are_described_where_the_template_has_none():
    prompt = ChatPrompt((Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "time?")), (CLOCK, MATHS))
    offered = template_input(prompt, knows_tools=False)
    system, user = offered.messages
    assert system["content"].startswith("Be brief.\n\nYou can call these functions:\n- clock: Tells the time.")
    assert "- maths: Calculates." in system["content"]
    assert system["content"].endswith("Otherwise answer in words.")
    assert (user["content"], offered.tools, offered.tool_names) == ("time?", [], ("clock", "maths"))
    demanded = template_input(replace(prompt, tool_choice=ToolChoice(tool_name="maths")), knows_tools=False)
    assert demanded.tool_names == ("maths",)
    assert "Otherwise" not in demanded.messages[0]["content"]
    assert "clock" not in demanded.messages[0]["content"]


def test_a_template_that_has_tools_gets_them_and_no_description():
    prompt = ChatPrompt((Message(Role.USER, "time?"),), (CLOCK,))
    offered = template_input(prompt, knows_tools=True)
    assert offered.messages == [{"role": "user", "content": "time?"}]
    assert [tool["function"]["name"] for tool in offered.tools] == ["clock"]
    hidden = replace(prompt, tool_choice=ToolChoice(ToolChoiceMode.NONE))
    for knows_tools in (True, False):
        expected = TemplateInput([{"role": "user", "content": "time?"}], [], ())
        assert template_input(hidden, knows_tools=knows_tools) == expected


def test_the_arguments_of_a_call_have_the_key_of_the_models_format():
    assert json.loads(call_schema([CLOCK], "parameters"))["required"] == ["name", "parameters"]
    prompt = ChatPrompt((Message(Role.USER, "time?"),), (CLOCK, MATHS))
    form = json.loads(call_form_constraint(prompt).text)["anyOf"][0]
    assert form["properties"]["arguments"] == {"type": "object"}


TOLD = (
    Message(Role.USER, "time?"),
    Message(
        Role.ASSISTANT,
        "I look.",
        tool_calls=(ToolCall("1", "clock", '{"zone":"UTC","days":[1,2]}'), ToolCall("2", "bell", "")),
    ),
    Message(Role.TOOL, "noon", tool_call_id="1", name="clock"),
    Message(Role.TOOL, "ding", tool_call_id="2", name="bell"),
    Message(Role.ASSISTANT, tool_calls=(ToolCall("3", "bell", "[1"),)),
)


def test_earlier_calls_are_written_in_words_where_no_tool_can_be_called():
    plain = plain_messages(TOLD, (), is_enforced=False)
    assert [entry["content"] for entry in plain] == [
        "time?",
        "I look.\nCalled clock: zone UTC, days [1,2]\nCalled bell.",
        "Result of clock: noon",
        "Result of bell: ding",
        "Called bell: [1",
    ]


def test_results_name_their_calls_where_the_model_may_call_again():
    _, *plain = plain_messages(TOLD, [CLOCK], is_enforced=False)
    assert [entry["content"] for entry in plain] == [
        "time?",
        "I look.",
        "Result of clock (zone UTC, days [1,2]): noon",
        "Result of bell: ding",
        '{"name":"bell","arguments":"[1"}',
    ]
    _, *silent = plain_messages((TOLD[0], replace(TOLD[1], content=""), *TOLD[2:4]), [CLOCK], is_enforced=False)
    assert [entry["role"] for entry in silent] == ["user", "user", "user"]


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
