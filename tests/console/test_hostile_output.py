"""What a model or a tool says is shown as text, whatever it says and however much."""

import json
import sys
import unicodedata

import pytest

from pagantic_common.domain.messages import ModelInfo, ToolCall, ToolDefinition, ToolSafety
from services.orchestrator.core.model.response import InferenceDelta
from services.orchestrator.ports.serving import ReplicaReport, ServedModel
from tests.support.console_worlds import QUOTE, waits, with_tool
from tests.support.scripted_services import ScriptedInference, answer, scripted_services
from tests.support.scripted_serving import LOAD, ScriptedServing

PIECE = 1000
LINE = "<b>A lamp</b> is 42 lamps, and more lamps come.\n"
MARKUP = [
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "<svg/onload=document.title='owned'>",
    "<a href=\"javascript:document.title='owned'\">click</a>",
    "[click](javascript:document.title='owned')",
    "![x](http://evil.example/steal.png)",
    "</div></main><style>*{display:none}</style>",
    "{{constructor.constructor('document.title=1')()}}",
    '"><iframe srcdoc="<script>top.document.title=1</script>">',
]
CONTROLS = {
    "\x1b[31mred\x1b[0m": "␛[31mred␛[0m",
    "user\u202egpj.exe": "user«U+202E»gpj.exe",
    "a\u2066b\u2069": "a«U+2066»b«U+2069»",
    "nul\0l": "nul␀l",
    "bell\x07": "bell␇",
    "old\rnew": "old␍new",
    "line\u2028end": "line«U+2028»end",
    "zero\u200bwidth": "zero«U+200B»width",
    "tag\U000e0041s": "tag«U+E0041»s",
    "c1\x9b31m": "c1«U+009B»31m",
}
# Marks of Arabic and Syriac that stand before a number or a word are formats to Unicode, and have a form.
WITH_A_FORM = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2}
PLAIN = ["Grüße, 你好, مرحبا, שלום", "👩‍👩‍👧 🏳️‍🌈", "می‌خواهم", "x\ty", "e\u0301"]


def steers(character):
    """Tell whether a character has no form of its own, by Unicode's tables; joiners are parts of words and emoji."""
    if character in "\t\n\u200c\u200d" or ord(character) in WITH_A_FORM:
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


class Fast(ScriptedInference):
    """Says its answer in pieces of several lines."""

    async def infer(self, command, hints):
        yield InferenceDelta()
        [said] = self.outputs
        for at in range(0, len(said.content), PIECE):
            yield InferenceDelta(said.content[at : at + PIECE])
        yield said


async def shown_text(opened):
    return await opened.page.evaluate("document.querySelector('.turns .answer > .output').textContent")


async def test_markup_of_a_model_a_tool_and_a_prompt_is_text_everywhere(console):
    text = "\n".join(MARKUP)
    call = ToolCall("c1", "clock", '{"zone": "<img src=x onerror=document.title=1>"}')
    services = with_tool(answer("", calls=[call]), answer(text), result=text)
    async with console(services) as opened:
        before = await opened.page.evaluate("document.querySelectorAll('script, style, iframe, img, object').length")
        await opened.say(text)
        await opened.answers()
        assert (await shown_text(opened)).startswith(text)
        await opened.page.click(".calls summary")
        assert text in await opened.page.evaluate("document.querySelector('.calls').textContent")
        execution = await opened.page.get_attribute(".turns > li", "data-id")
        for address in (f"#/executions/{execution}", f"#/executions/{execution}/replay", "#/executions"):
            await opened.open(address)
            await opened.page.wait_for_selector(".picture .item, #said, tbody tr")
            assert await opened.page.title() != "owned"
        await opened.open("#/chat")
        after = await opened.page.evaluate("document.querySelectorAll('script, style, iframe, img, object').length")
        assert after == before
        assert await opened.page.evaluate("document.querySelectorAll('a[href^=\"javascript:\"]').length") == 0
        assert {url.split("/")[2] for url in opened.requests} == {opened.url.split("/")[2]}


ELEMENTS = "document.querySelectorAll('script, style, iframe, img, object, a[href^=\"javascript:\"]').length"
HOSTILE = f"{MARKUP[0]} {MARKUP[1]} user\u202egpj.exe \x1b[31m {'long' * 60}"
SHOWN = "user«U+202E»gpj.exe ␛[31m"


async def hostile_session(opened):
    message = {"role": "ROLE_USER", "content": "\n".join([*MARKUP, HOSTILE])}
    await opened.execute("r", session_id="s", messages=[message])
    title = {"state_json": {"console.title": json.dumps(HOSTILE[:200]), "other": json.dumps(HOSTILE)}}
    await opened.server.http.patch("/v1/sessions/s", json=title)


async def hostile_file(opened):
    await opened.server.http.post("/v1/collections", json={"name": "c" * 64})
    await opened.open(f"#/collections/{'c' * 64}")
    await opened.page.wait_for_selector(".facts dd")
    hostile_name = HOSTILE.replace("/", "|")
    for name, content, said in (
        ("<img src=x>.txt", f"{QUOTE}. {HOSTILE}".encode(), "1 file stored."),
        (hostile_name, b"%PDF-1.4", "1 file stored, 1 not stored."),
    ):
        file = {"name": name, "mimeType": "text/plain", "buffer": content}
        await opened.page.set_input_files("#files", file)
        await opened.page.locator("main .note").get_by_text(said, exact=True).wait_for()
    await opened.page.fill("#question", HOSTILE)
    await opened.page.press("#question", "Enter")
    await opened.page.click(".sources button")
    await opened.page.wait_for_selector(".chunk .plain, .chunk .note")


async def hostile_call(opened):
    running = await waits(opened, "r")
    await opened.open("#/tools")
    await opened.page.wait_for_selector(".approval")
    await opened.page.click(".tool-list summary")
    opened.page.once("close", lambda _: running.cancel())


PLACES = {
    "sessions": (hostile_session, "#/sessions", "tbody tr"),
    "session": (hostile_session, "#/sessions/s", ".turns > li"),
    "file": (hostile_file, "", ".files > li"),
    "tool": (hostile_call, "", ".tool-list"),
    "models": (None, "#/models", "tbody tr"),
    "load": (None, "#/load", ".replicas section"),
}


def hostile_services():
    cited = {"in_sources": True, "claims": [{"source": 1, "quote": QUOTE, "text": HOSTILE}]}
    call = ToolCall("c1", "clock", json.dumps({"zone": HOSTILE}))
    said = [answer("", calls=[call]), answer("It is noon."), answer(json.dumps(cited))]
    services = with_tool(*said)
    schema = json.dumps({"type": "object", "description": HOSTILE})
    services.tools.definition = ToolDefinition(
        "clock", HOSTILE, schema, safety=ToolSafety.EXTERNAL, requires=(HOSTILE,)
    )
    return services


class HostileModels(ScriptedInference):
    async def list_models(self):
        return (ModelInfo(HOSTILE, 8192, ("chat", HOSTILE)),)


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=[] if place == "session" else pytest.mark.whole_console) for place in PLACES],
)
async def test_hostile_names_titles_files_and_schemas_are_text_and_fit_a_narrow_screen(console, place):
    act, address, ready = PLACES[place]
    services = hostile_services()
    if place == "models":
        services = scripted_services(HostileModels())
    if place == "file":
        services.inference.outputs = services.inference.outputs[-1:]
    model = ServedModel(ModelInfo(HOSTILE, 8192, ("chat",)), is_loaded=True)
    serving = ScriptedServing(ReplicaReport(HOSTILE, HOSTILE + "2", LOAD, (model,)))
    world = {"models_served": serving}
    async with console(services, width=360, has_collections=place == "file", orchestrator=world) as opened:
        before = await opened.page.evaluate(ELEMENTS)
        if act is not None:
            await act(opened)
        if address:
            await opened.open(address)
        await opened.page.wait_for_selector(ready)
        shown = await opened.page.evaluate("document.querySelector('main').textContent")
        assert (SHOWN in shown, "<script>" in shown) == (True, True)
        assert await opened.page.evaluate(ELEMENTS) == before
        assert await opened.page.title() != "owned"
        assert await opened.overflow() <= 0
        assert {url.split("/")[2] for url in opened.requests} == {opened.url.split("/")[2]}


@pytest.mark.whole_console
async def test_controls_and_marks_of_direction_are_visible_and_scripts_and_emoji_stay_as_they_are(console):
    text = "\n".join([*CONTROLS, *PLAIN])
    async with console(scripted_services(ScriptedInference(answer(text)))) as opened:
        await opened.say("hi")
        await opened.answers()
        assert (await shown_text(opened)).startswith("\n".join([*CONTROLS.values(), *PLAIN]))


async def test_every_character_that_only_steers_is_written_by_name(console):
    blocks = [range(0x3000), range(0xD7F0, 0xE010), range(0xFE00, 0x10000), range(0xE0000, 0xE0200)]
    codes = [code for block in blocks for code in block if unicodedata.category(chr(code)) != "Cn"]
    async with console() as opened:
        module = await opened.page.evaluate("document.querySelector('[type=module]').src.replace('app.js', 'text.js')")
        shown = await opened.page.evaluate(
            "async ([module, codes]) => { const { visible } = await import(module);"
            " return codes.map((code) => visible(String.fromCodePoint(code))); }",
            [module, codes],
        )
    wrong = [hex(code) for code, text in zip(codes, shown, strict=True) if (text != chr(code)) != steers(chr(code))]
    assert wrong == []


def recorded_events(text):
    """Return the server-sent events of an execution with this text."""
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    events = [{"content_delta": {"text": piece}} for piece in pieces]
    events.append({"completed": {"response": {"content": text, "finish_reason": "FINISH_REASON_STOP"}}})
    return "".join(f"id: 1.{number}\ndata: {json.dumps(event)}\n\n" for number, event in enumerate(events))


async def check_long_output(opened, size):
    """Send a message whose answer is so long, and look that the page goes on while it comes and shows all on demand."""
    await opened.page.evaluate(
        "window.longest = 0; let last = performance.now(); (function next() { const now = performance.now();"
        " window.longest = Math.max(window.longest, now - last); last = now; requestAnimationFrame(next); })()"
    )
    await opened.say("hi")
    more = opened.page.locator(".answer > .output button")
    await opened.page.wait_for_selector(".answer:not([aria-busy]) .answer-foot button", timeout=60_000)
    longest_ms = await opened.page.evaluate("window.longest")
    sys.stdout.write(f"{size} characters: longest frame {longest_ms:.0f} ms\n")
    assert "Show the rest" in await more.inner_text()
    shown = len(await shown_text(opened))
    assert 100_000 <= shown < 101_000
    await more.press("Enter")
    await opened.page.wait_for_function(
        "shown => document.querySelector('.turns .answer > .output').textContent.length > shown + 400000", arg=shown
    )
    assert await opened.page.evaluate("document.querySelectorAll('.turns *').length") < 500


async def test_a_long_output_does_not_stop_the_page(console):
    async with console(scripted_services(Fast(answer(LINE * 20_000)))) as opened:
        await check_long_output(opened, len(LINE) * 20_000)


@pytest.mark.whole_console
async def test_an_output_that_is_larger_than_the_system_gives_does_not_stop_the_page(console):
    text = LINE * (10_000_000 // len(LINE) + 1)
    async with console() as opened:
        await opened.page.route(
            lambda url: url.endswith("/v1/executions"),
            lambda route: route.fulfill(content_type="text/event-stream", body=recorded_events(text)),
        )
        await check_long_output(opened, len(text))
