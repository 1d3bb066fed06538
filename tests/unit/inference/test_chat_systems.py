"""System messages that do not stand first, and what a template cannot render."""

import json

import pytest

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall
from pagantic_common.domain.text.json_text import MAX_DEPTH
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.core.generation import ChatPrompt
from tests.support.inference_app import TEMPLATE, generation_over

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
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
