"""Tool calls in the terminal program, and the decisions about those that wait."""

import json
from typing import ClassVar

import pytest
from textual.app import App
from textual.widgets import Button

from gateway.tui.widgets import approval
from gateway.tui.widgets.approval import SETTLE_S, ApprovalPanel
from gateway.tui.work.choices import Choices
from pagantic.orchestrator.v1.approval_pb2 import Approval
from pagantic_common.domain.messages import ToolCall
from tests.support.console_worlds import CALL, with_tool
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services


def choose(person, **choices):
    person.app._chat.choices = Choices(tools=("clock",), **choices)


@pytest.mark.whole_terminal
async def test_a_call_shows_its_arguments_and_its_result(terminal):
    async with terminal(with_tool()) as person:
        choose(person)
        await person.ask("what time is it?")
        assert '✓ clock({"zone": "UTC"})' in person.text
        assert "→ noon" in person.text
        assert "It is noon." in person.text


async def test_a_call_that_waits_is_approved_by_keys_and_takes_no_key_that_was_typed(terminal):
    services = with_tool()
    async with terminal(services) as person:
        choose(person, asks=True)
        await person.say("what time is it?")
        await person.wait_for('"zone": "UTC"')
        await person.wait_for("a call waits: Ctrl")
        await person.type("ad\r ")  # keys for the next message decide nothing
        assert services.tools.calls == []
        await person.press("ctrl+p")
        assert person.app.focused.id == "deny"
        await person.press("tab", "enter")
        await person.wait_for("It is noon.")
        await person.wait_until(lambda: "waits" not in person.text)
        assert json.loads(services.tools.calls[0].arguments_json) == {"zone": "UTC"}
        assert person.app.focused.id == "composer"


@pytest.mark.whole_terminal
async def test_a_call_is_denied_by_the_first_button(terminal):
    services = with_tool()
    async with terminal(services) as person:
        choose(person, asks=True)
        await person.say("what time is it?")
        await person.wait_for("a call waits: Ctrl")
        await person.press("ctrl+p", "enter")
        await person.wait_for("failed, TOOL_DENIED")
        assert "clock rejected by local: rejected at the terminal" in person.whole()
        assert services.tools.calls == []


@pytest.mark.whole_terminal
async def test_a_call_is_approved_with_other_arguments(terminal):
    services = with_tool()
    async with terminal(services) as person:
        choose(person, asks=True)
        await person.say("what time is it?")
        await person.wait_for("a call waits: Ctrl")
        await person.press("ctrl+p", "right", "right", "enter")
        assert person.app.focused.id == "changed"
        person.app.focused.load_text("[1]")
        await person.press("tab", "tab", "enter")
        await person.wait_for("must be a JSON object")
        for wrong in ('{"zone": "\\ud800"}', '{"zone": 1e999}'):
            person.app.focused.load_text(wrong)
            await person.press("tab", "tab", "enter")
            await person.wait_until(lambda: person.app.focused.id == "changed")
        await person.wait_for("the number 1e999 is too large")
        person.app.focused.load_text('{"zone": "\ud800"}')  # No terminal can send this.
        await person.press("tab", "tab", "enter")
        await person.wait_for("The decision was not sent: ")
        person.app.query_one("#changed").focus()
        await person.pilot.pause(0.3)  # a button takes no other press while it shows one
        assert services.tools.calls == []
        person.app.focused.load_text('{"zone": "CET"}')
        await person.press("tab", "tab", "enter")
        await person.wait_for("It is noon.")
        assert json.loads(services.tools.calls[0].arguments_json) == {"zone": "CET"}
        assert '✓ clock({"zone":"CET"})' in person.text


@pytest.mark.whole_terminal
async def test_two_calls_that_wait_are_decided_one_after_another(terminal):
    calls = [CALL, ToolCall("c2", "clock", '{"zone": "CET"}')]
    inference = ScriptedInference(answer("", calls=calls), answer("It is noon."))
    services = scripted_services(inference, tools=ScriptedTools())
    async with terminal(services, size=(120, 40)) as person:
        choose(person, asks=True)
        await person.say("what time is it?")
        await person.wait_for("a call waits: Ctrl")
        await person.press("ctrl+p", "tab", "enter")
        await person.wait_for('"zone": "CET"')
        await person.wait_until(lambda: person.app.focused.id == "deny")
        await person.pilot.pause(SETTLE_S)
        await person.press("tab", "enter")
        await person.wait_for("It is noon.")
        assert len(services.tools.calls) == 2


async def test_a_press_just_after_a_call_replaced_another_one_decides_nothing(monkeypatch):
    first, second = (Approval(request_id="r", tool_call_id=call_id, tool_name="clock") for call_id in ("c1", "c2"))

    class Holder(App):
        decided: ClassVar = []

        def compose(self):
            yield ApprovalPanel()

        def on_approval_panel_decided(self, event):
            self.decided.append(event.approval.tool_call_id)

    async def decided_after_a_press():
        app.query_one("#deny", Button).press()  # the key waits for the end of the button's effect
        await pilot.pause(0.05)
        return app.decided

    monkeypatch.setattr(approval, "SETTLE_S", 1_000.0)
    app = Holder()
    async with app.run_test() as pilot:
        panel = app.query_one(ApprovalPanel)
        panel.show([first, second])
        assert await decided_after_a_press() == ["c1"]
        panel.show([second])
        assert await decided_after_a_press() == ["c1"]
        monkeypatch.setattr(approval, "SETTLE_S", 0.0)
        assert await decided_after_a_press() == ["c1", "c2"]
        # The failure of the first call came late.
        panel.allow_again(first)
        assert await decided_after_a_press() == ["c1", "c2"]
        panel.allow_again(second)
        assert await decided_after_a_press() == ["c1", "c2", "c2"]


@pytest.mark.whole_terminal
async def test_a_decision_that_somebody_else_made_is_seen(terminal):
    services = with_tool()
    async with terminal(services) as person:
        choose(person, asks=True)
        await person.say("what time is it?")
        await person.wait_for("a call waits: Ctrl")
        [waiting] = await person.app.client.list_approvals()
        await person.app.client.approve(waiting.request_id, waiting.tool_call_id)
        await person.wait_for("It is noon.")
        await person.wait_until(lambda: "waits" not in person.text)


@pytest.mark.whole_terminal
@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_an_answer_is_stopped_while_a_call_waits(terminal, key):
    async with terminal(with_tool()) as person:
        choose(person, asks=True)
        await person.say("what time is it?")
        await person.wait_for("a call waits: Ctrl")
        await person.press("ctrl+p", "escape")
        assert person.app.focused.id == "composer"
        assert "waits" in person.text
        await person.press(key)
        await person.wait_for("stopped; the text so far")
        await person.wait_until(lambda: "waits" not in person.text)


@pytest.mark.whole_terminal
async def test_arguments_that_are_longer_than_their_panel_are_reached_by_keys(terminal):
    arguments = json.dumps({f"key {number}": number for number in range(30)})
    inference = ScriptedInference(answer("", calls=[ToolCall("c1", "clock", arguments)]), answer("It is noon."))
    services = scripted_services(inference, tools=ScriptedTools())
    async with terminal(services) as person:
        choose(person, asks=True)
        await person.say("what time is it?")
        await person.wait_for("32 lines of arguments: Shift")
        assert "key 29" not in person.text.split("for your decision")[1]
        await person.press("ctrl+p", "shift+tab", "end")
        await person.wait_until(lambda: "key 29" in person.text.split("for your decision")[1])
        await person.press("tab", "tab", "enter")
        await person.wait_for("It is noon.")
