"""What a model, a tool or another program says is shown as text, whatever it says and however much."""

import pytest
from textual.app import App

from gateway.tui.widgets.growing import MAX_SHOWN
from gateway.tui.widgets.timeline import MAX_ROWS, TimelinePane
from gateway.tui.work.answer import MAX_EVENTS, Answer
from gateway.tui.work.choices import MAX_TEXT_BYTES, Choices
from pagantic.orchestrator.v1.event_pb2 import ExecutionEvent
from pagantic_common.domain.messages import ToolCall
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services
from tests.support.terminal_person import screen_text
from tests.support.terminal_worlds import CONTROLS, Fast, Thinking

MARKUP = ["[bold red]x[/]", "[link=http://evil.example]click[/link]", "[@click=app.exit]bye[/]", "[/]", "[", "\\[x]"]


async def test_markup_and_controls_of_a_model_and_a_tool_are_shown_as_text(terminal):
    hostile = "\n".join([*MARKUP, *CONTROLS])
    call = ToolCall("c1", "clock", '{"zone": "[bold]\\u001b]0;x"}')
    inference = ScriptedInference(answer("", calls=[call]), answer(hostile))
    services = scripted_services(inference, tools=ScriptedTools(result="[red]\x1b[31mnoon"))
    async with terminal(services, size=(120, 50)) as person:
        person.app._chat.choices = Choices(tools=("clock",))
        await person.press("ctrl+t")
        await person.ask("[bold]me[/bold] \x1b]0;me\x07")
        shown = person.text
        for text in [*MARKUP, *CONTROLS.values()]:
            assert text in shown.splitlines() or f" {text}" in shown
        assert '("zone"' not in shown
        assert '{"zone": "[bold]\\u001b]0;x"}' in shown
        assert "→ [red]␛[31mnoon" in shown
        assert "[bold]me[/bold]" in shown
        assert not set(shown) & set("\x1b\x07\x9b\r\b\u202e")


@pytest.mark.whole_terminal
async def test_megabytes_are_shown_up_to_a_bound_and_keys_work_meanwhile(terminal):
    line = "A lamp is 42 lamps, and more lamps come.\n"
    async with terminal(scripted_services(Fast(answer(line * (2_000_000 // len(line)))))) as person:
        await person.ask("much")
        await person.wait_for("more characters: `pagantic show`")
        texts = person.app.query("#transcript .answer Plain")
        assert MAX_SHOWN - len(texts) <= sum(len(str(one.render())) for one in texts if one.display) <= MAX_SHOWN + 100
        await person.press("ctrl+n")
        await person.wait_for("Ask something")


async def test_the_timeline_goes_on_beyond_the_events_that_are_kept():
    class Holder(App):
        def compose(self):
            yield TimelinePane()

    followed = Answer("r")
    app = Holder()
    async with app.run_test(size=(120, 40)) as pilot:
        pane = app.query_one(TimelinePane)
        for last in (MAX_EVENTS, MAX_EVENTS + 1):
            for sequence in range(followed.sequence + 1, last + 1):
                followed.take(ExecutionEvent(sequence=sequence, action=f"step-{sequence}"))
            pane.show(followed.events)
            await pilot.pause()
            assert f"step-{last}" in screen_text(app)
            pane.scroll_home(animate=False)
            await pilot.pause()
            assert f"{last - MAX_ROWS:,} earlier events: `pagantic timeline` shows all" in screen_text(app)
            pane.scroll_end(animate=False)


@pytest.mark.whole_terminal
async def test_a_line_without_an_end_is_shown(terminal):
    async with terminal(scripted_services(Fast(answer("x" * 50_000)))) as person:
        await person.ask("much")
        texts = person.app.query("#transcript .answer Plain")
        assert sum(str(one.render()).count("x") for one in texts) == 50_000


@pytest.mark.whole_terminal
async def test_hostile_names_of_conversations_are_text(terminal):
    async with terminal(size=(120, 40)) as person:
        await person.ask("[red]\u202ename[/red] [@click=app.exit]")
        await person.wait_for(r"● \[red\]«U\+202E»name\[/red\]")
        await person.press("ctrl+o", "delete")
        await person.wait_for(r"Delete the conversation '\[red\]")


async def test_a_paste_of_100_kb_is_sent_and_a_larger_one_is_refused_with_what_to_do(terminal):
    inference = ScriptedInference()
    async with terminal(scripted_services(inference)) as person:
        pasted = "Lamps cost 42. \x1b[31m\n" * (100_000 // 21)
        await person.paste(pasted)
        composer = person.app.query_one("#composer")
        assert composer.text == "Lamps cost 42. \n" * (100_000 // 21)
        await person.paste("x" * MAX_TEXT_BYTES)
        await person.wait_for("262,144")
        await person.wait_for("ingest COLLECTION FILE")
        assert len(composer.text) == len("Lamps cost 42. \n") * (100_000 // 21)
        await person.press("enter")
        await person.wait_for(r"request [0-9a-f]+:")
        assert inference.commands[0].messages[-1].content == "Lamps cost 42. \n" * (100_000 // 21)
        assert "more characters)" in person.whole()


@pytest.mark.whole_terminal
@pytest.mark.parametrize("services", [scripted_services(Thinking()), scripted_services(ScriptedInference(None))])
async def test_any_size_at_any_moment_is_drawn(terminal, services):
    async with terminal(services) as person:
        await person.press("ctrl+t")
        await person.say("hi")
        for columns, rows in [(120, 40), (40, 12), (10, 5), (200, 60), (1, 1), (80, 24)]:
            await person.pilot.resize_terminal(columns, rows)
            await person.pilot.pause(0.1)
            assert len(person.lines) == rows
        await person.wait_for("context")
