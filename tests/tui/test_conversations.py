"""Conversations in the terminal program: begun, listed, opened, continued and deleted; options and timelines."""

import asyncio

import pytest

from gateway.tui import chat
from gateway.tui.work.choices import Choices
from pagantic_common.client.tables import timeline_rows
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.model.response import FinishReason
from tests.support.console_worlds import CALL, with_tool
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services
from tests.support.terminal_worlds import Paused

WIDE = (120, 40)


async def titles(person):
    sessions = await person.app.client.list_sessions()
    return [(one.session_id, one.message_count) for one in sessions]


async def test_conversations_are_begun_listed_opened_and_deleted_by_keys(terminal):
    inference = ScriptedInference(answer("the first answer"), answer("the second answer"), answer("the third answer"))
    async with terminal(scripted_services(inference)) as person:
        await person.ask("about lamps\nand more")
        await person.press("ctrl+n")
        await person.wait_until(lambda: "the first answer" not in person.text)
        await person.ask("about chairs")
        await person.press("ctrl+o")
        await person.wait_for("● about chairs")
        assert "about lamps" in person.text
        await person.press("down", "enter")
        await person.wait_for("the first answer")
        assert "the second answer" not in person.text
        await person.ask("go on")
        assert [message.content for message in inference.commands[-1].messages][-3:] == [
            "about lamps\nand more",
            "the first answer",
            "go on",
        ]
        await person.press("ctrl+o")
        await person.wait_for("● about lamps")
        await person.press("delete")
        await person.wait_for("Delete the conversation 'about lamps'")
        await person.press("enter")  # the focus is on Cancel
        assert len(await titles(person)) == 2
        await person.press("delete")
        await person.wait_for("Delete the conversation 'about lamps'")
        await person.press("tab", "enter")
        await person.wait_until(lambda: "about lamps" not in person.text)
        assert len(await titles(person)) == 1
        await person.press("escape")
        await person.wait_for("Ask something")


@pytest.fixture
def may_load(monkeypatch):
    """Hold back the conversations that are opened until this event is set."""
    loads, held = chat.load_conversation, asyncio.Event()

    async def load_later(client, session_id):
        await held.wait()
        return await loads(client, session_id)

    monkeypatch.setattr(chat, "load_conversation", load_later)
    return held


async def test_a_message_waits_for_the_conversation_that_is_being_opened(terminal, may_load):
    inference = ScriptedInference(answer("the first answer"), answer("the second answer"), answer("the third answer"))
    async with terminal(scripted_services(inference)) as person:
        await person.ask("about lamps")
        lamps = person.app._chat.conversation.session_id
        await person.press("ctrl+n")
        await person.ask("about chairs")
        person.app._chat.open(lamps)
        await person.wait_for("opening…")
        await person.say("go on")
        await person.wait_for("A conversation is being opened")
        assert person.app.query_one("#composer").text == "go on"
        assert len(inference.commands) == 2
        may_load.set()
        await person.wait_for("the first answer")
        await person.press("enter")
        await person.wait_for("the third answer")
        assert [message.content for message in inference.commands[-1].messages][-3:] == [
            "about lamps",
            "the first answer",
            "go on",
        ]


@pytest.mark.whole_terminal
@pytest.mark.parametrize(("key", "is_seen"), [("ctrl+n", False), ("escape", True)])
async def test_a_conversation_that_is_being_opened_does_not_come_after_another_key(terminal, may_load, key, is_seen):
    inference = ScriptedInference(answer("the first answer"), answer("the second answer"))
    async with terminal(scripted_services(inference)) as person:
        await person.ask("about lamps")
        lamps = person.app._chat.conversation.session_id
        await person.press("ctrl+n")
        await person.ask("about chairs")
        person.app._chat.open(lamps)
        await person.wait_for("opening…")
        await person.press(key)
        await person.wait_until(lambda: "opening…" not in person.text)
        may_load.set()
        await person.wait_until(lambda: all(one.is_finished for one in person.app.workers if one.group == "open"))
        await person.pilot.pause(0.1)
        assert ("the second answer" in person.text) is is_seen
        assert "the first answer" not in person.text


@pytest.mark.whole_terminal
async def test_a_good_answer_is_not_shown_as_the_failed_one_after_it(terminal):
    inference = ScriptedInference(answer("the first answer"), InvalidRequest("too much"))
    async with terminal(scripted_services(inference)) as person:
        await person.ask("about lamps")
        await person.say("go on")
        await person.wait_for("too much")
        await person.press("ctrl+n")
        await person.wait_for("Ask something")
        await person.open_newest()
        await person.wait_for("the first answer")
        assert "too much" not in person.text


@pytest.mark.whole_terminal
async def test_a_conversation_whose_first_answer_was_stopped_has_its_title(terminal):
    async with terminal(scripted_services(ScriptedInference(None))) as person:
        await person.say("about lamps")
        await person.wait_for("partial")
        await person.press("escape")
        await person.wait_for("stopped; the text so far")
        await person.press("ctrl+o")
        await person.wait_for("● about lamps")


@pytest.mark.whole_terminal
async def test_an_answer_goes_on_while_another_conversation_is_open(terminal):
    inference = Paused()
    async with terminal(scripted_services(inference), size=WIDE) as person:
        await person.ask_and_leave("hi")
        await person.press("ctrl+n")
        await person.wait_until(lambda: "first half," not in person.text)
        await person.wait_for("Ask something")
        await person.open_newest()
        await person.wait_for("first half,")
        inference.may_go_on.set()
        await person.wait_for("first half, second half")
        assert len(inference.commands) == 1


async def test_the_timeline_has_what_the_command_shows(terminal):
    async with terminal(with_tool(), size=(120, 60)) as person:
        await person.press("ctrl+t")
        await person.wait_for("No execution yet")
        await person.ask("what time is it?")
        stored = await person.app.client.timeline((await person.newest()).request_id)
        shown = person.app.query_one("#timeline")
        await person.wait_until(lambda: len(shown._events) == len(stored))
        table = shown._events
        assert [row.cells for row in timeline_rows(table)] == [row.cells for row in timeline_rows(stored)]
        await person.wait_for("execution.end")


@pytest.mark.whole_terminal
async def test_options_travel_with_the_next_message(terminal):
    inference = ScriptedInference()
    async with terminal(scripted_services(inference)) as person:
        await person.press("ctrl+g")
        await person.wait_for("options of the next messages")
        await person.press("tab")
        await person.type("Be short.")
        await person.press("tab", "space")
        await person.press(*["tab"] * 5)
        await person.type("0.5")
        await person.press("tab")
        await person.type("many")
        await person.press("enter")
        await person.wait_for("'many' is not a number")
        await person.press(*["backspace"] * 4)
        await person.type("77")
        await person.press("ctrl+s")
        await person.wait_until(lambda: "options of" not in person.text)
        await person.ask("hi")
        command, hints = inference.commands[0], inference.hinted[0]
        assert command.messages[0].content == "Be short."
        assert [tool.name for tool in command.tools] == ["clock"]
        assert (hints.temperature, hints.max_tokens) == (0.5, 77)


@pytest.mark.whole_terminal
async def test_help_shows_every_key_that_there_is(terminal):
    async with terminal() as person:
        await person.press("f1")
        await person.wait_for("decide about a tool call")
        await person.press("escape")
        await person.wait_until(lambda: "decide about" not in person.text)


@pytest.mark.whole_terminal
async def test_function_keys_do_what_an_editor_s_terminal_keeps_from_other_keys(terminal):
    async with terminal(with_tool()) as person:
        await person.ask("what time is it?")
        await person.press("f2")
        await person.wait_for("● what time is it")
        await person.press("f3")
        await person.wait_for("Ask something")
        await person.press("f4")
        await person.wait_for("No execution yet")
        await person.press("f8")
        await person.wait_for("options of the next messages")


@pytest.mark.whole_terminal
async def test_a_conversation_that_is_opened_again_shows_what_its_calls_and_its_end_were(terminal):
    limited = answer("It is", reason=FinishReason.LENGTH)
    inference = ScriptedInference(answer("", calls=[CALL]), limited)
    services = scripted_services(inference, tools=ScriptedTools())
    async with terminal(services) as person:
        person.app._chat.choices = Choices(tools=("clock",))
        await person.ask("what time is it?")
        await person.press("ctrl+n")
        await person.wait_for("Ask something")
        await person.open_newest()
        await person.wait_for("cut at its limit of tokens")
        assert '✓ clock({"zone": "UTC"})' in person.text
        assert "→ noon" in person.text
        await person.press("ctrl+t")
        await person.wait_for("execution.end")
