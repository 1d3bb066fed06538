"""System messages that do not stand first, neighbours of one role, empty messages, and what no template can render."""

import json

import pytest

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall
from pagantic_common.domain.text.json_text import MAX_DEPTH
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.core.generation import ChatPrompt
from services.inference.core.prompts import with_joined_neighbours
from tests.support.inference_app import TEMPLATE, generation_over

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
)
TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}{{ m.tool_calls | default([]) | map(attribute='id') | join(',') }}\n"
    "{% endfor %}assistant: "
)
CONVERSATION = (
    Message(Role.SYSTEM, "be kind"),
    Message(Role.USER, "hi"),
    Message(Role.SYSTEM, "be brief"),
    Message(Role.USER, "so?"),
)


async def rendered(template, messages):
    generation = generation_over(ScriptedEngine(), template=template)
    try:
        return bytes(await generation.prompt_tokens(ChatPrompt(messages))).decode()
    finally:
        await generation.close()


async def test_a_system_message_stays_in_its_place_where_the_template_can():
    text = await rendered(TEMPLATE, CONVERSATION)
    assert text == "system: be kind\nuser: hi\nsystem: be brief\nuser: so?\nassistant: "


async def test_a_template_that_takes_one_system_message_gets_them_joined():
    text = await rendered(STRICT, CONVERSATION)
    assert text == "system: be kind\n\nbe brief\nuser: hi\nuser: so?\nassistant: "


async def test_a_template_that_demands_turns_gets_neighbours_of_one_role_joined():
    calls = [Message(Role.ASSISTANT, tool_calls=(ToolCall(name, "clock", "{}"),)) for name in ("a", "b")]
    messages = (Message(Role.USER, "hi"), Message(Role.USER, "so?"), Message(Role.ASSISTANT, "hm"), *calls)
    text = await rendered(f"{TURNS}{{# It knows tools. #}}", (*messages, Message(Role.USER, "and?")))
    assert text == "user: hi\n\nso?\nassistant: hma,b\nuser: and?\nassistant: "
    assert await rendered(TEMPLATE, messages[:2]) == "user: hi\nuser: so?\nassistant: "


async def test_a_template_that_demands_turns_and_has_no_place_for_later_system_messages_gets_both_joined():
    template = TURNS.replace("{% if (", "{% if m.role == 'system' or (")
    template = template.replace("{% for m in messages", "{{ messages[0].content }}\n{% for m in messages[1:]")
    assert await rendered(template, CONVERSATION) == "be kind\n\nbe brief\nuser: hi\n\nso?\nassistant: "


def test_joined_neighbours_keep_their_calls_and_their_reasoning():
    user, result = {"role": "user", "content": "hi"}, {"role": "tool", "content": "noon", "tool_call_id": "a"}
    thought = {"role": "assistant", "content": "", "reasoning_content": "easy"}
    called = {"role": "assistant", "content": "hm", "tool_calls": [{"id": "a"}], "reasoning_content": "hard"}
    again = {"role": "assistant", "content": "ha", "tool_calls": [{"id": "b"}]}
    joined = {
        "role": "assistant",
        "content": "hm\n\nha",
        "reasoning_content": "easy\n\nhard",
        "tool_calls": [{"id": "a"}, {"id": "b"}],
    }
    messages = [user, thought, called, again, result, result, user]
    assert with_joined_neighbours(messages) == [user, joined, result, result, user]
    assert with_joined_neighbours([user, thought, user]) == [user, thought, user]


async def test_models_do_not_see_empty_messages():
    empty = [Message(role) for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)]
    thought = Message(Role.ASSISTANT, reasoning="hm")
    text = await rendered(TEMPLATE, (*empty, *CONVERSATION, *empty, thought, Message(Role.USER, "and?")))
    assert text == "system: be kind\nuser: hi\nsystem: be brief\nuser: so?\nuser: and?\nassistant: "


async def test_a_template_that_refuses_for_another_reason_still_refuses():
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        await rendered("{{ raise_exception('no') }}", (Message(Role.USER, "hi"),))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 960])
async def test_arguments_that_are_nested_too_deeply_are_shown_as_text(depth):
    arguments = '{"a":' * depth + "1" + "}" * depth
    call = Message(Role.ASSISTANT, tool_calls=(ToolCall("c1", "f", arguments),))
    with_tools = "{% for m in messages %}{{ m.tool_calls | default([]) | tojson }}{% endfor %}{{ tools | tojson }}"
    assert json.dumps(arguments) in await rendered(with_tools, (Message(Role.USER, "hi"), call))
    shallow = Message(Role.ASSISTANT, tool_calls=(ToolCall("c1", "f", '{"a":' * 50 + "1" + "}" * 50),))
    assert '{"a"' in await rendered(with_tools, (Message(Role.USER, "hi"), shallow))
