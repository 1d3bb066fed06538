"""Sessions and collections in the console, by keyboard alone."""

import asyncio
import json

import pytest

from tests.support.console_worlds import CITED, LAMPS, QUOTE
from tests.support.scripted_services import ScriptedInference, answer, scripted_services


async def titled(opened):
    """Wait until the only conversation has a title, which it gets after its first answer."""
    for _ in range(1500):
        [session] = (await opened.server.http.get("/v1/sessions?state_key=console.title")).json()["sessions"]
        if session.get("state_json"):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the conversation has no title")


async def go(opened, section, ready):
    """Go to a section of the page by its link, and wait for something there."""
    await opened.tab_to(f"#nav-{section}", back=True)
    await opened.press("Enter")
    await opened.page.wait_for_selector(ready)


async def delete(opened, *, is_meant=True):
    """Press the button that deletes, and answer its question; the keyboard is on Cancel at first."""
    await opened.tab_to("#delete")
    await opened.press("Enter")
    await opened.page.wait_for_selector("dialog.confirm[open]")
    assert await opened.page.evaluate("document.activeElement.value") == "cancel"
    await opened.press(*(["Tab", "Enter"] if is_meant else ["Enter"]))
    await opened.page.wait_for_selector("dialog.confirm", state="detached")


async def test_a_conversation_is_found_renamed_continued_and_deleted(console):
    async with console(scripted_services(ScriptedInference(answer("hello there")))) as opened:
        await go(opened, "sessions", "main .empty a")
        assert "No conversation is stored yet" in await opened.text(".empty")
        await go(opened, "chat", "#message")
        await opened.say("Which lamp is red?")
        await opened.answers()
        await titled(opened)
        await go(opened, "sessions", "tbody tr")
        row = await opened.text("tbody tr")
        assert ("Which lamp is red?" in row, "\t2\t" in row) == (True, True)
        await opened.tab_to("tbody a")
        await opened.press("Enter")
        await opened.page.get_by_text("13 of 100 tokens").wait_for()
        assert "hello there" in await opened.text(".turns")
        await opened.tab_to("#title")
        await opened.press("Control+a")
        await opened.type("Lamps")
        await opened.press("Enter")
        await opened.page.get_by_role("heading", name="Lamps").wait_for()
        await opened.tab_to("#continue", back=True)
        await opened.press("Enter")
        await opened.answers()
        await opened.say("And the green one?")
        await opened.answers(2)
        await go(opened, "sessions", "tbody tr")
        assert "Lamps" in await opened.text("tbody tr")
        await opened.tab_to("tbody a")
        await opened.press("Enter")
        await opened.page.wait_for_selector("#delete")
        await delete(opened, is_meant=False)
        assert await opened.page.evaluate("document.activeElement.id") == "delete"
        await delete(opened)
        await opened.page.wait_for_selector("main .empty a")


@pytest.mark.whole_console
async def test_a_session_that_is_gone_says_so_and_leads_back(console):
    async with console() as opened:
        await opened.open("#/sessions/nobody")
        await opened.page.wait_for_selector(".failure")
        assert "nobody" in await opened.text(".failure")
        await opened.tab_to("main a")
        await opened.press("Enter")
        await opened.page.get_by_role("heading", name="Sessions").wait_for()


@pytest.mark.whole_console
async def test_a_long_conversation_is_read_page_by_page(console):
    async with console(scripted_services(ScriptedInference(answer("yes")))) as opened:
        for number in range(30):
            await opened.execute(
                f"r{number}", session_id="s", messages=[{"role": "ROLE_USER", "content": f"no {number}"}]
            )
        await opened.open("#/sessions/s")
        await opened.page.wait_for_selector(".turns > li")
        assert await opened.page.locator(".turns > li").count() == 50
        await opened.page.get_by_role("button", name="Older messages").focus()
        await opened.press("Enter")
        await opened.page.wait_for_function("() => document.querySelectorAll('.turns > li').length === 60")
        assert (await opened.text(".turns > li")).endswith("no 0")
        assert await opened.page.evaluate("document.activeElement === document.querySelector('.turns > li')")


def file(name, content, kind="text/plain"):
    return {"name": name, "mimeType": kind, "buffer": content}


async def test_a_collection_is_made_filled_asked_and_deleted(console):
    inference = ScriptedInference(answer(json.dumps(CITED)))
    async with console(scripted_services(inference), has_collections=True) as opened:
        await go(opened, "collections", "#name")
        await opened.page.get_by_text("There is no collection yet").wait_for()
        await opened.tab_to("#name")
        await opened.type("lamps")
        await opened.press("Enter")
        await opened.page.wait_for_selector("#files")
        await opened.choose(file("lamps.txt", LAMPS.encode()), file("broken.pdf", b"%PDF-1.4", "application/pdf"))
        await opened.page.locator("main").get_by_text("1 file stored, 1 not stored.").wait_for()
        good, bad = [await one.inner_text() for one in await opened.page.query_selector_all(".files > li")]
        assert "added: 1 chunk" in good
        assert ("not stored" in bad, "CONFIG_INVALID" in bad, "Next step" in bad) == (True, True, True)
        await opened.page.wait_for_function("() => document.querySelector('.facts dd').textContent === '1'")
        await opened.tab_to("#question")
        await opened.type("What does the red lamp cost?")
        await opened.press("Enter")
        assert (await opened.answers())[-1] == "It costs 42. [1]"
        assert QUOTE in inference.commands[0].messages[-1].content
        await opened.tab_to(".sources button")
        await opened.press("Enter")
        await opened.page.wait_for_selector(".chunk mark")
        chunk = await opened.text(".chunk")
        assert (await opened.text(".chunk mark"), "the green one 17" in chunk) == (QUOTE, True)
        await delete(opened)
        await opened.page.get_by_text("There is no collection yet").wait_for()


@pytest.mark.whole_console
async def test_dropped_files_are_stored_and_a_file_that_was_refused_is_sent_again(console):
    async with console(has_collections=True, max_file_bytes=1024) as opened:
        await opened.server.http.post("/v1/collections", json={"name": "lamps"})
        await opened.open("#/collections/lamps")
        await opened.page.wait_for_selector("#files")
        drop = (
            "sizes => { const data = new DataTransfer();"
            " for (const size of sizes) data.items.add(new File(['x'.repeat(size)], `${size}.txt`));"
            " const drop = new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });"
            " document.querySelector('.zone').dispatchEvent(drop); }"
        )
        await opened.page.evaluate(drop, [5, 2000])
        await opened.page.locator("main").get_by_text("1 file stored, 1 not stored.").wait_for()
        assert "1024 bytes" in await opened.text(".files .failure")
        await opened.page.get_by_role("button", name="Send again").focus()
        await opened.press("Enter")
        await opened.page.wait_for_selector(".files .failure")
        assert "1 file stored, 1 not stored." in await opened.said()


@pytest.mark.whole_console
async def test_a_question_before_there_are_documents_says_what_to_do(console):
    async with console(has_collections=True) as opened:
        await opened.server.http.post("/v1/collections", json={"name": "lamps"})
        await opened.open("#/collections/lamps")
        await opened.page.wait_for_selector(".facts dd")
        await opened.tab_to("#question")
        await opened.type("What?")
        await opened.press("Enter")
        await opened.page.get_by_text("add files first").first.wait_for()


@pytest.mark.whole_console
async def test_a_collection_that_is_taken_or_gone_says_so(console):
    async with console(has_collections=True) as opened:
        await opened.server.http.post("/v1/collections", json={"name": "lamps"})
        await opened.open("#/collections")
        await opened.page.wait_for_selector("tbody tr")
        await opened.page.fill("#name", "lamps")
        await opened.press("Enter")
        await opened.page.wait_for_selector(".failure")
        assert "lamps" in await opened.text(".failure")
        await opened.open("#/collections/nothing")
        await opened.page.get_by_text("no collection is named nothing").wait_for()
