"""The constructors of messages take the fields that the orchestrator takes, and refuse the others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic.common.v1 import message_pb2
from pagantic_common.client import assistant_message, system_message, tool_result, user_message
from pagantic_common.codec.messages import message_from_proto
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall, check_message
from tests.support.examples import examples
from tests.support.sample_images import sample_image

TEXTS = st.text(max_size=8)
IDS = st.sampled_from(["", "c1", "call|7", "a\nb", "x" * 512, "x" * 513])
CALLS = st.builds(message_pb2.ToolCall, id=IDS, name=st.sampled_from(["", "clock"]), arguments_json=TEXTS)


def is_taken(message):
    try:
        check_message(message_from_proto(message), 0)
    except InvalidRequest:
        return False
    return True


def made(make, *args, **fields):
    """Return the message, or None if the constructor refuses the fields."""
    try:
        return make(*args, **fields)
    except ValueError:
        return None


@settings(max_examples=examples(200))
@given(TEXTS, st.lists(CALLS, max_size=2), TEXTS)
def test_an_assistants_message_is_taken_or_refused_as_at_the_orchestrator(text, calls, reasoning):
    message = made(assistant_message, text, tool_calls=calls, reasoning=reasoning)
    sent = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=text, tool_calls=calls, reasoning=reasoning)
    assert message == (sent if is_taken(sent) else None)


@settings(max_examples=examples(200))
@given(CALLS, TEXTS)
def test_a_result_is_taken_or_refused_as_at_the_orchestrator(call, text):
    message = made(tool_result, call, text)
    sent = message_pb2.Message(role=message_pb2.ROLE_TOOL, content=text, tool_call_id=call.id, name=call.name)
    assert message == (sent if is_taken(sent) else None)


@given(TEXTS)
def test_texts_of_the_system_and_the_user_are_taken(text):
    assert message_from_proto(system_message(text)) == Message(Role.SYSTEM, text)
    assert message_from_proto(user_message(text)) == Message(Role.USER, text)


def test_every_role_has_a_constructor():
    call = message_pb2.ToolCall(id="c1", name="clock", arguments_json="{}")
    turn = [
        system_message("Be brief."),
        user_message("What time is it?"),
        assistant_message("Let me see.", tool_calls=[call], reasoning="a clock"),
        tool_result(call, "noon"),
    ]
    decoded = [message_from_proto(message) for message in turn]
    assert [message.role for message in decoded] == list(Role)
    assert decoded[2].tool_calls == (ToolCall("c1", "clock", "{}"),)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tool_result(message_pb2.ToolCall(name="clock"), "noon"), "needs tool_call_id and name"),
        (lambda: assistant_message(tool_calls=[message_pb2.ToolCall(id="c1")]), r"tool_calls\[0\] has no name"),
        (lambda: user_message(sample_image() + b"x" * 8 * 1024 * 1024), "bytes"),
    ],
)
def test_a_refusal_says_why(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()
