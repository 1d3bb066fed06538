"""What comes late, twice or never is shown once, and only on the page that asked for it."""

import asyncio

import pytest

from tests.support.console_worlds import waits, with_tool


async def held_back(page, pattern, *, times=None):
    """Hold back what the page asks for by this pattern, until the event that is returned is set."""
    may_go_on = asyncio.Event()

    async def hold(route):
        await may_go_on.wait()
        await route.continue_()

    await page.route(pattern, hold, times=times)
    return may_go_on


async def go(opened, section):
    await opened.page.evaluate("section => { location.hash = `#/${section}`; }", section)


@pytest.mark.whole_console
async def test_a_page_that_was_left_before_its_module_came_does_not_replace_the_next(console):
    async with console() as opened:
        may_come = await held_back(opened.page, "**/tools.js")
        async with opened.page.expect_response("**/tools.js"):
            await go(opened, "tools")
            await go(opened, "executions")
            await opened.page.get_by_role("heading", name="Executions").wait_for()
            may_come.set()
        await asyncio.sleep(0.5)  # as long as a page would take to be shown
        assert await opened.text("main h1") == "Executions"


@pytest.mark.whole_console
@pytest.mark.parametrize("section", ["sessions", "executions"])
async def test_two_presses_on_older_ones_add_the_rows_once(console, section):
    async with console() as opened:
        for number in range(52):
            await opened.execute(f"r{number}", session_id=f"s{number}")
        await go(opened, section)
        older = opened.page.get_by_role("button", name="Older ones")
        await older.wait_for()
        may_come = await held_back(opened.page, f"**/v1/{section}?*")
        await older.evaluate("button => { button.click(); button.click(); }")
        may_come.set()
        await opened.page.wait_for_function("() => document.querySelectorAll('tbody tr').length >= 52")
        await asyncio.sleep(0.5)  # as long as a second answer would take
        assert await opened.page.locator("tbody tr").count() == 52


@pytest.mark.whole_console
async def test_a_file_that_cannot_be_read_is_not_called_a_lost_connection(console, tmp_path):
    files = [tmp_path / name for name in ("first.txt", "gone.txt", "last.txt")]
    for file in files:
        file.write_text(f"The {file.stem} lamp is red.")
    async with console(has_collections=True) as opened:
        await opened.server.http.post("/v1/collections", json={"name": "lamps"})
        await opened.open("#/collections/lamps")
        await opened.page.wait_for_selector(".facts dd")
        may_be_sent = await held_back(opened.page, "**/files?source=first.txt")
        await opened.page.set_input_files("#files", files)
        files[1].unlink()
        may_be_sent.set()
        await opened.page.wait_for_selector(".files .failure")
        assert "FILE_UNREADABLE" in await opened.text(".files .failure")
        await opened.page.locator(".note", has_text="2 files stored, 1 not stored.").wait_for()


@pytest.mark.whole_console
async def test_an_answer_to_a_file_that_is_no_json_does_not_stop_the_next(console):
    async with console(has_collections=True) as opened:
        await opened.server.http.post("/v1/collections", json={"name": "lamps"})
        await opened.open("#/collections/lamps")
        await opened.page.wait_for_selector(".facts dd")
        await opened.page.route("**/files?source=a.txt", lambda route: route.fulfill(status=200, body="<html>"))
        file = {"mimeType": "text/plain", "buffer": b"The lamp is red."}
        await opened.page.set_input_files("#files", [file | {"name": name} for name in ("a.txt", "b.txt")])
        await opened.page.locator(".note", has_text="1 file stored, 1 not stored.").wait_for()
        assert "the answer of the gateway cannot be read" in await opened.text(".files .failure")


@pytest.mark.whole_console
async def test_a_decided_call_does_not_come_back_with_a_list_that_is_older(console):
    asked, may_arrive, arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold(route):
        older = await route.fetch()
        asked.set()
        await may_arrive.wait()
        await route.fulfill(response=older)
        arrived.set()

    async with console(with_tool()) as opened:
        task = await waits(opened, "r")
        await opened.open("#/tools")
        await opened.page.wait_for_selector(".approval")
        await opened.page.evaluate(
            "() => new MutationObserver(() => { window.most = Math.max(window.most ?? 0, "
            "document.querySelectorAll('.approval').length); }).observe(document.querySelector('.waiting'), "
            "{ childList: true })"
        )
        await opened.page.route("**/v1/approvals?*", hold, times=1)
        await asked.wait()
        await opened.page.locator(".approval .main-action").click()
        await opened.page.get_by_text("No call waits.").wait_for()
        may_arrive.set()
        await arrived.wait()
        async with opened.page.expect_response("**/v1/approvals?*"):
            pass
        assert await opened.page.evaluate("window.most") == 0
        await task
