import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.codec import messages as codec
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import is_id, is_trace_id
from pagantic_common.domain.messages import (
    Message,
    ModelInfo,
    Role,
    ToolCall,
    check_message,
    check_stored_message,
    check_turn,
)
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage

TEXT = st.text(max_size=20)
CALLS = st.builds(ToolCall, id=TEXT, name=TEXT, arguments_json=TEXT)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=TEXT,
    reasoning=TEXT,
    tool_calls=st.lists(CALLS, max_size=3).map(tuple),
    tool_call_id=TEXT,
    name=TEXT,
    cut=st.booleans(),
    said_as=TEXT,
    removed=st.booleans(),
)
MODELS = st.builds(ModelInfo, TEXT, st.integers(0, 2**31 - 1), st.lists(TEXT).map(tuple), st.integers(0, 2**62), TEXT)
COUNTS = st.integers(0, 2**20)
USAGES = st.builds(TokenUsage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0, 100).map(float))


@given(MESSAGES)
def test_a_message_survives_the_codec(message):
    assert codec.message_from_proto(codec.message_to_proto(message)) == message


@given(MODELS)
def test_a_model_survives_the_codec(model):
    assert codec.model_info_from_proto(codec.model_info_to_proto(model)) == model


@pytest.mark.parametrize("role", [Role.SYSTEM, Role.USER])
def test_a_message_may_carry_the_callers_word_for_its_role(role):
    check_message(Message(role, "hi", said_as="developer"), 0)


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (Message(Role.USER, "hi", tool_call_id="1"), "must not carry tool_call_id"),
        (Message(Role.SYSTEM, "hi", name="x"), "must not carry name"),
        (Message(Role.USER, "hi", reasoning="x"), "must not carry reasoning"),
        (Message(Role.TOOL, "hi"), "needs tool_call_id and name"),
        (Message(Role.ASSISTANT, "hi", said_as="model"), "must not carry said_as"),
        (Message(Role.USER, "hi", said_as="a b"), r"messages\[0\] \(user\): said_as 'a b' does not match"),
        (Message(Role.USER, "hi", removed=True), "must not carry removed"),
        (Message(Role.TOOL, "hi", tool_call_id="a\n", name="clock"), "1 to 512 printable characters"),
        (Message(Role.TOOL, "hi", tool_call_id="a" * 513, name="clock"), "tool_call_id 'a+' must have 1 to 512"),
        (
            Message(Role.ASSISTANT, tool_calls=(ToolCall("", "clock", "{}"),)),
            r"tool_calls\[0\].id '' must have 1 to 512",
        ),
        (Message(Role.ASSISTANT, tool_calls=(ToolCall("a", "", "{}"),)), r"tool_calls\[0\] has no name"),
    ],
)
def test_a_message_with_the_wrong_fields_for_its_role_is_refused(message, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        check_message(message, 0)


@pytest.mark.parametrize("role", [Role.SYSTEM, Role.USER, Role.ASSISTANT])
def test_a_message_may_be_empty_and_models_do_not_see_it(role):
    check_message(Message(role), 0)
    assert not Message(role).is_shown
    assert Message(role, "hi").is_shown


def test_a_result_and_calls_are_shown_without_a_text_and_reasoning_alone_is_not():
    assert Message(Role.TOOL, "", tool_call_id="a", name="clock").is_shown
    assert Message(Role.ASSISTANT, tool_calls=(ToolCall("a", "clock", "{}"),)).is_shown
    assert not Message(Role.ASSISTANT, reasoning="hm").is_shown
    assert not Message(Role.TOOL, removed=True).is_shown


@pytest.mark.parametrize("call_id", ["call_1|fc_2", "toolu_a/b+c=", "id 1", "ü", "f" * 512])
def test_ids_of_calls_are_those_of_any_system(call_id):
    check_message(Message(Role.ASSISTANT, tool_calls=(ToolCall(call_id, "clock", "{}"),)), 0)
    check_message(Message(Role.TOOL, tool_call_id=call_id, name="clock"), 1)


@pytest.mark.parametrize("role", Role)
def test_a_stored_message_may_be_removed_and_then_has_nothing_else(role):
    check_stored_message(Message(role, removed=True), 3, "replaced_messages")
    with pytest.raises(
        InvalidRequest, match=r"replaced_messages\[3\] \(\w+\) is removed: it must carry its role alone"
    ):
        check_stored_message(Message(role, "hi", removed=True), 3, "replaced_messages")


def test_a_turn_ends_with_the_user_or_a_tool():
    check_turn([Message(Role.USER, "hi")])
    check_turn([Message(Role.TOOL, "", tool_call_id="a", name="clock")])
    with pytest.raises(InvalidRequest, match="last message"):
        check_turn([Message(Role.ASSISTANT, "hi")])
    with pytest.raises(InvalidRequest, match="messages is empty"):
        check_turn([])
    with pytest.raises(InvalidRequest, match=r"messages\[1\] \(user\) is empty: send text"):
        check_turn([Message(Role.USER, "hi"), Message(Role.USER)])


@given(USAGES, USAGES)
def test_usage_sums_counts_and_takes_the_larger_context(left, right):
    total = left + right
    assert total.prompt_tokens == left.prompt_tokens + right.prompt_tokens
    assert total.context_tokens == max(left.context_tokens, right.context_tokens)
    assert total == right + left


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_deadline_never_leaves_more_than_its_timeout(now, timeout, later):
    deadline = Deadline.after(now, timeout)
    left = deadline.remaining_s(now + later)
    assert left is not None
    assert 0 <= left <= timeout * (1 + 1e-9) + 1e-6
    assert Deadline().remaining_s(now) is None


def test_ids_have_a_small_alphabet():
    assert is_id("a.B_c:9-")
    assert not any(is_id(bad) for bad in ("", "a b", "ü", "x" * 129, "a\n"))
    assert is_trace_id("0af7651916cd43dd8448eb211c80319c")
    assert not any(is_trace_id(bad) for bad in ("0" * 32, "0AF7651916CD43DD8448EB211C80319C", "abc"))


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", "[1,]", "'a'", "[" * 100_000, "9" * 5000])
def test_what_is_not_strict_json_is_refused_with_a_reason(text):
    with pytest.raises(JsonTextError) as caught:
        parse_json(text)
    assert str(caught.value)
