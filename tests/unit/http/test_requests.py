"""Requests of OpenAI's clients, and the requests of the orchestrator that they become."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.openai.forms import ChatForm, read_form
from gateway.http.openai.requests import SEEDS, request_of
from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.messages import message_from_proto
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.images import image_of
from tests.support.sample_images import sample_image

CALL_S = 60.0
ICON_URL = image_of("image/png", sample_image()).url
USER = {"role": "user", "content": "What time is it?"}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time.", "parameters": {"a": 1}}}
LAMP = {"type": "function", "function": {"name": "lamp"}}
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}],
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def request(messages=(USER,), *, alias="", **fields):
    return request_of(read_form({"messages": list(messages), **fields}, ChatForm), alias, CALL_S)


def choice_of(made):
    return made.hints.tool_choice


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", message_pb2.ROLE_SYSTEM),
        ("developer", message_pb2.ROLE_SYSTEM),
        ("user", message_pb2.ROLE_USER),
        ("assistant", message_pb2.ROLE_ASSISTANT),
    ],
)
def test_each_role_is_a_role_of_the_contract(role, expected):
    (message, _) = request([{"role": role, "content": "text"}, {"role": "user", "content": "hi"}]).messages
    assert (message.role, message.content) == (expected, "text")


def test_a_system_message_at_the_end_is_read_as_the_users():
    (message,) = request([{"role": "developer", "content": "text"}]).messages
    assert message.role == message_pb2.ROLE_USER


def test_text_parts_and_refusals_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}, {"type": "text", "text": "c"}]
    assert request([{"role": "assistant", "content": parts}]).messages[0].content == "abc"
    assert request([{"role": "assistant", "refusal": "no"}]).messages[0].content == "no"


def image(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def test_an_image_keeps_its_place_among_the_texts():
    parts = [{"type": "text", "text": "What is "}, image(ICON_URL), {"type": "text", "text": "this?"}]
    (message,) = request([{"role": "user", "content": parts}]).messages
    assert [part.WhichOneof("part") for part in message.parts] == ["text", "image", "text"]
    assert (message.parts[1].image.media_type, message.parts[1].image.data) == ("image/png", sample_image())
    assert message_from_proto(message).content == "What is this?"


@pytest.mark.parametrize(
    ("role", "part", "wrong"),
    [
        ("user", image("https://example.com/cat.png"), r"content\[1\]\.image_url is no data URL.* not fetched"),
        ("user", image("data:image/png;base64,?"), r"content\[1\]\.image_url is no base64"),
        ("user", {"type": "image_url"}, r"content\[1\]\.image_url is no data URL"),
        ("user", {"type": "input_audio"}, r"content\[1\] has the type 'input_audio'"),
        ("system", image(ICON_URL), "of the role 'system' and has an image"),
    ],
)
def test_a_part_that_cannot_be_read_is_refused_by_its_place(role, part, wrong):
    with pytest.raises(InvalidRequest, match=rf"^messages\[1\].*{wrong}"):
        request([USER, {"role": role, "content": [{"type": "text", "text": "a"}, part]}, USER])


def test_the_reasoning_and_calls_of_the_assistant_are_kept():
    message = request([USER, CALLING | {"reasoning_content": "hm"}, USER]).messages[1]
    [call] = message.tool_calls
    assert (message.reasoning, message.content) == ("hm", "")
    assert (call.id, call.name, call.arguments_json) == ("c1", "clock", '{"zone":"UTC"}')


def test_the_result_of_a_tool_gets_the_name_of_the_tool_by_the_id_of_the_call():
    message = request([USER, CALLING, {"role": "tool", "tool_call_id": "c1", "content": "noon"}]).messages[2]
    assert (message.role, message.name, message.tool_call_id) == (message_pb2.ROLE_TOOL, "clock", "c1")


@pytest.mark.parametrize("fields", [{"tool_call_id": "c2"}, {}])
def test_the_result_of_an_unknown_call_is_refused(fields):
    with pytest.raises(InvalidRequest, match=r"^messages\[2\]\.tool_call_id is .*no tool call of a message before"):
        request([USER, CALLING, {"role": "tool", "content": "noon", **fields}])


def test_messages_of_functions_and_calls_of_other_tools_are_refused():
    with pytest.raises(InvalidRequest, match=r"^messages\[1\]\.role is 'function'"):
        request([USER, {"role": "function", "name": "clock", "content": "noon"}])
    for call in ({"id": "c", "type": "custom", "custom": {}}, CALLING["tool_calls"][0] | {"type": "custom"}):
        with pytest.raises(InvalidRequest, match=r"^messages\[0\]\.tool_calls\[0\] calls no function"):
            request([{"role": "assistant", "tool_calls": [call]}])


def test_tools_or_else_functions_are_tools_of_the_client():
    assert [tool.name for tool in request(functions=[{"name": "door"}]).client_tools] == ["door"]
    made = request(tools=[CLOCK, LAMP], functions=[{"name": "door"}])
    assert [tool.name for tool in made.client_tools] == ["clock", "lamp"]
    assert made.client_tools[0].description == "Tells the time."
    assert [json.loads(tool.parameters_json) for tool in made.client_tools] == [
        {"a": 1},
        NO_PARAMETERS,
    ]
    assert not made.hints.HasField("tool_choice")


NAMES_NO_TOOLS = [
    {},
    {"tools": []},
    {"tool_choice": "auto"},
    {"tools": [], "tool_choice": "auto"},
    {"function_call": "auto"},
    {"functions": [], "function_call": "none"},
    {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
    {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [LAMP]}}},
    {"pagantic": {"hints": {"tool_choice": {"mode": "TOOL_CHOICE_MODE_AUTO"}}}},
    {"response_format": {"type": "json_object"}, "tool_choice": "auto"},
]
LAMP_ALONE = {"mode": "required", "tools": [LAMP]}
DEMANDS_A_CALL = [
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "calculator"}}},
    {"function_call": {"name": "calculator"}},
    {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": LAMP_ALONE}},
    {"pagantic": {"hints": {"tool_choice": {"mode": "TOOL_CHOICE_MODE_REQUIRED"}}}},
    {"pagantic": {"hints": {"tool_choice": {"tool_name": "calculator"}}}},
]


@pytest.mark.parametrize("fields", NAMES_NO_TOOLS)
def test_a_request_that_names_no_tools_is_offered_none_whatever_it_chooses(fields):
    made = request(**fields)
    assert (choice_of(made).mode, list(made.client_tools)) == (message_pb2.TOOL_CHOICE_MODE_NONE, [])


@pytest.mark.parametrize("fields", DEMANDS_A_CALL)
def test_a_demand_for_a_call_without_tools_is_refused(fields):
    with pytest.raises(InvalidRequest, match=r"^tool_choice asks for a call, but there is no tool to call"):
        request(**fields)


def test_tools_of_the_deployment_are_offered_by_name_alone():
    assert not request(pagantic={"tools": ["clock"]}).hints.HasField("tool_choice")
    made = request(pagantic={"tools": ["clock"]}, tool_choice="required")
    assert choice_of(made).mode == message_pb2.TOOL_CHOICE_MODE_REQUIRED
    made = request(pagantic={"client_tools": [{"name": "door", "parameters_json": "{}"}]}, tool_choice="auto")
    assert choice_of(made).mode == message_pb2.TOOL_CHOICE_MODE_AUTO


def test_a_planner_must_be_told_its_tools():
    with pytest.raises(InvalidRequest, match=r"^pagantic\.mode is MODE_PLAN: .*pagantic\.tools"):
        request(pagantic={"mode": "MODE_PLAN"})
    assert not request(pagantic={"mode": "MODE_PLAN", "plan": {}}).hints.HasField("tool_choice")
    assert not request(pagantic={"mode": "MODE_PLAN", "tools": ["clock"]}).hints.HasField("tool_choice")


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"parameters": None},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"parameters": {"type": "object", "properties": {}}},
        {"parameters": {"properties": {}, "additionalProperties": False, "type": "object"}},
    ],
)
def test_a_function_without_parameters_takes_none(parameters):
    (tool,) = request(tools=[{"type": "function", "function": {"name": "ping", **parameters}}]).client_tools
    assert json.loads(tool.parameters_json) == NO_PARAMETERS


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "object", "minProperties": 1},
        {"type": "object", "patternProperties": {"^a": {}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"anyOf": [{"type": "object"}]},
        {"type": "array"},
    ],
)
def test_parameters_that_are_described_are_kept_as_they_are(parameters):
    function = {"name": "ping", "parameters": parameters}
    (tool,) = request(tools=[{"type": "function", "function": function}]).client_tools
    assert json.loads(tool.parameters_json) == parameters


def test_a_custom_tool_is_left_out_and_named():
    fields = {"tools": [CLOCK, {"type": "custom", "custom": {"name": "sed"}}]}
    assert [tool.name for tool in request(**fields).client_tools] == ["clock"]
    assert read_form({"messages": [USER], **fields}, ChatForm).ignored == ["tools[].type=custom"]


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"tool_choice": "auto"}, message_pb2.TOOL_CHOICE_MODE_AUTO),
        ({"tool_choice": "none"}, message_pb2.TOOL_CHOICE_MODE_NONE),
        ({"tool_choice": "required"}, message_pb2.TOOL_CHOICE_MODE_REQUIRED),
        ({"function_call": "none"}, message_pb2.TOOL_CHOICE_MODE_NONE),
        ({"function_call": "auto"}, message_pb2.TOOL_CHOICE_MODE_AUTO),
        ({"function_call": "auto", "tool_choice": "required"}, message_pb2.TOOL_CHOICE_MODE_REQUIRED),
    ],
)
def test_a_word_chooses_the_mode_over_all_tools(fields, mode):
    made = request(tools=[CLOCK], **fields)
    assert (choice_of(made).WhichOneof("choice"), choice_of(made).mode) == ("mode", mode)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "function", "function": {"name": "lamp"}}},
        {"function_call": {"name": "lamp"}},
    ],
)
def test_a_named_function_must_be_called(fields):
    assert choice_of(request(tools=[CLOCK, LAMP], **fields)).tool_name == "lamp"


def test_allowed_tools_leave_the_others_out():
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "lamp"}}]}
    made = request(tools=[CLOCK, LAMP], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [tool.name for tool in made.client_tools] == ["lamp"]
    assert choice_of(made).mode == message_pb2.TOOL_CHOICE_MODE_REQUIRED


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "custom"}}, "tool_choice has the type 'custom'"),
        ({"tool_choice": {"type": "function"}}, r"tool_choice\.function is missing"),
        ({"tool_choice": {"type": "allowed_tools"}}, r"tool_choice\.allowed_tools is missing"),
        ({"tools": [CLOCK, {"type": "web_search"}]}, r"tools\[1\] has the type 'web_search'"),
        ({"modalities": ["text", "audio"]}, "modalities are"),
        ({"response_format": {"type": "json_schema"}}, r"response_format\.json_schema\.schema is missing"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(fields, words):
    with pytest.raises(InvalidRequest, match=words):
        request(**fields)


def test_a_response_format_is_the_schema_of_a_structured_answer():
    schema = {"type": "object", "properties": {"grüße": {"type": "string"}}}
    made = request(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    assert (made.mode, json.loads(made.output.schema_json)) == (execution_pb2.MODE_STRUCTURED, schema)
    made = request(response_format={"type": "json_object"})
    assert (made.mode, json.loads(made.output.schema_json)) == (execution_pb2.MODE_STRUCTURED, {"type": "object"})
    made = request(response_format={"type": "text"})
    assert (made.mode, made.output.schema_json) == (execution_pb2.MODE_CHAT, "")


def test_hints_are_what_the_fields_say():
    fields = {"temperature": 0.0, "top_p": 0.5, "presence_penalty": -1.0, "frequency_penalty": 1.0}
    hints = request(alias="m", logprobs=True, top_logprobs=3, **fields).hints
    assert {name: getattr(hints, name) for name in fields} == fields
    assert (hints.model, hints.top_logprobs) == ("m", 3)
    plain = request(top_logprobs=3).hints
    assert not any(plain.HasField(name) for name in [*fields, "top_logprobs", "seed"])


@pytest.mark.parametrize(("seed", "expected"), [(0, 0), (7, 7), (-1, SEEDS - 1), (SEEDS + 2, 2)])
def test_seeds_are_taken_modulo_the_number_of_seeds(seed, expected):
    assert request(seed=seed).hints.seed == expected


@pytest.mark.parametrize(("stop", "expected"), [("a", ["a"]), (["a", "b"], ["a", "b"]), (None, []), ([], [])])
def test_stops_are_one_text_or_several(stop, expected):
    assert list(request(stop=stop).hints.stop) == expected


def test_biases_of_nothing_are_left_out():
    assert dict(request(logit_bias={"5": 1, "6": 0, "x": 0}).hints.logit_bias) == {5: 1.0}


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "", "9999999999", "9" * 5000, "²"])
def test_a_bias_of_what_is_no_id_of_a_token_is_refused(token):
    with pytest.raises(InvalidRequest, match=r"^logit_bias has the token"):
        request(logit_bias={token: 1})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_completion_tokens": 3, "max_tokens": 4}, 3),
        ({"max_tokens": 4}, 4),
        ({"pagantic": {"hints": {"max_tokens": 5}}}, 5),
        ({}, 0),
    ],
)
def test_the_newer_name_of_the_longest_answer_comes_first(fields, expected):
    assert request(**fields).hints.max_tokens == expected


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
@pytest.mark.parametrize("value", [-1, 1 << 31, 1 << 70])
def test_a_longest_answer_out_of_range_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=rf"^{name}: "):
        request(**{name: value})


def test_reasoning_effort_none_turns_reasoning_off():
    assert request(reasoning_effort="none").hints.reasoning.mode == generation_pb2.REASONING_MODE_OFF
    assert not request(reasoning_effort="high").hints.HasField("reasoning")


def test_the_extension_is_a_request_under_the_other_fields():
    voting = {"n": 5, "strategy": "VOTING_STRATEGY_UNANIMITY"}
    extension = {"mode": "MODE_REDUNDANT", "voting": voting, "hints": {"temperature": 1.0, "top_k": 4}}
    made = request(response_format={"type": "json_object"}, temperature=0.5, pagantic=extension)
    assert (made.mode, made.voting.n) == (execution_pb2.MODE_REDUNDANT, 5)
    assert (made.hints.temperature, made.hints.top_k) == (0.5, 4)


@pytest.mark.parametrize(
    ("extension", "words"),
    [
        ({"messages": [{"content": "x"}]}, r"^pagantic\.messages is set"),
        ({"colour": "green"}, r"^pagantic is not a SystemRequest as JSON: .*colour"),
        ({"mode": "MODE_DANCE"}, "^pagantic is not a SystemRequest as JSON: .*MODE_DANCE"),
        ({"request_id": "a\r\nb: c"}, r"^pagantic\.request_id .*does not match"),
        ({"hints": 5}, "^pagantic is not a SystemRequest as JSON: .*hints"),
    ],
)
def test_an_extension_that_is_no_request_is_refused(extension, words):
    with pytest.raises(InvalidRequest, match=words):
        request(pagantic=extension)


@pytest.mark.parametrize(
    ("timeout", "expected_s"), [(None, CALL_S), ("0s", CALL_S), ("2.500s", 2.5), ("60s", 60.0), ("61s", CALL_S)]
)
def test_no_request_runs_longer_than_the_gateway_lets_it(timeout, expected_s):
    extension = {"hints": {"timeout": timeout}} if timeout else {}
    assert request(pagantic=extension).hints.timeout.ToMilliseconds() == expected_s * 1000


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"messages": [USER, {"role": "wizard"}]}, "messages[1].role: "),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content: input should be a valid string"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type: field required"),
        ({"stop": ["x"] * 17}, "stop: list should have at most 16 items"),
        ({"tool_choice": "some"}, "tool_choice: input should be 'auto', 'none' or 'required'"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name: field required"),
        ({"function_call": {"names": "a"}}, "function_call.name: field required"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name: field required"),
        ({"logit_bias": {"5": "x"}}, "logit_bias: "),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format.json_schema.sch"),
        ({"n": 9}, "n: input should be less than or equal to 8"),
    ],
)
def test_the_place_of_a_wrong_field_is_named(fields, start):
    with pytest.raises(InvalidRequest) as refused:
        read_form({"messages": [USER], **fields}, ChatForm)
    assert str(refused.value).startswith(start)


def test_a_body_that_is_no_object_is_refused_as_a_whole():
    with pytest.raises(InvalidRequest, match=r"^the body: "):
        read_form([], ChatForm)


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({}, []),
        ({"user": "me", "verbosity": "low", "n": 1}, ["user", "verbosity"]),
        ({"user": None, "web_search_options": {}}, ["web_search_options"]),
        ({"top_logprobs": 3}, ["top_logprobs"]),
        ({"response_format": {"type": "json_object", "schema": {"type": "object"}}}, ["response_format.schema"]),
        ({"messages": [USER | {"name": "a"}, USER | {"name": "b"}]}, ["messages[].name"]),
        ({"tools": [CLOCK], "functions": [{"name": "door"}]}, ["functions"]),
        ({"max_tokens": 4, "max_completion_tokens": 5}, ["max_tokens"]),
        ({"metadata": {"a": "b"}, "stream_options": {"include_usage": True}}, ["metadata", "stream_options"]),
        ({"stream_options": {"include_usage": None}, "stream": False}, []),
        ({"reasoning_effort": "low", "tool_choice": "auto"}, ["reasoning_effort", "tool_choice"]),
        (
            {"tools": [{"type": "function", "function": {"name": "lamp", "strict": False}}]},
            ["tools[].function.strict"],
        ),
        ({"tools": [{"type": "function", "function": {"name": "lamp", "strict": True}}]}, []),
        ({"a" * 300: 1}, ["a" * 256]),
        ({f"{number:02}": 1 for number in range(99)}, [f"{number:02}" for number in range(64)]),
    ],
)
def test_fields_without_effect_are_named_at_every_depth(fields, ignored):
    assert read_form({"messages": [USER], **fields}, ChatForm).ignored == ignored


@given(st.sampled_from(sorted(ChatForm.model_fields)), JSON_VALUES)
def test_any_value_of_any_field_gives_a_request_or_is_refused(name, value):
    try:
        made = request_of(read_form({"messages": [USER], name: value}, ChatForm), "", CALL_S)
    except InvalidRequest:
        return
    assert made.messages
