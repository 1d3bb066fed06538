"""Tools, approvals, models and the load in the console, by keyboard alone."""

import asyncio
from dataclasses import replace

import pytest

from pagantic_common.domain.calls.api_keys import StoredKey, hash_of
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.errors import Aborted, ErrorCode, Unavailable
from services.orchestrator.ports.serving import ReplicaReport
from tests.integration.orchestrator.test_identity import ADMIN
from tests.support.console_worlds import waits, with_tool
from tests.support.scripted_services import ScriptedTools, scripted_services
from tests.support.scripted_serving import LOAD, ScriptedServing

USES = frozenset({Scope.EXECUTE, Scope.READ})
USER = StoredKey(DEFAULT_TENANT, ADMIN.key_id, "user", USES, hash_of(ADMIN.secret), 0.0)


@pytest.mark.whole_console
async def test_calls_that_wait_are_decided_and_what_somebody_writes_stays(console):
    services = with_tool()
    async with console(services) as opened:
        first = await waits(opened, "first")
        await opened.open("#/tools")
        await opened.page.wait_for_selector(".approval")
        await opened.tab_to(".approval textarea")
        await opened.press("Control+a")
        await opened.type('{"zone": "CET"}')
        services.inference.outputs = with_tool().inference.outputs
        second = await waits(opened, "second")
        await opened.page.wait_for_function("() => document.querySelectorAll('.approval').length === 2")
        assert await opened.page.input_value(".approval textarea") == '{"zone": "CET"}'
        await opened.tab_to(".approval .main-action")
        await opened.press("Enter")
        await opened.page.wait_for_function("() => document.querySelectorAll('.approval').length === 1")
        assert await opened.said() == "clock is approved."
        assert await opened.page.evaluate("document.activeElement.matches('.approval textarea')")
        await opened.tab_to(".approval button:not(.main-action)")
        await opened.press("Enter")
        await opened.page.get_by_text("No call waits.").wait_for()
        await asyncio.gather(first, second)
    assert [call.arguments_json for call in services.tools.calls] == ['{"zone": "CET"}']


@pytest.mark.whole_console
async def test_a_call_that_is_decided_elsewhere_leaves_the_page(console):
    async with console(with_tool()) as opened:
        task = await waits(opened, "r")
        await opened.open("#/tools")
        await opened.page.wait_for_selector(".approval")
        await opened.server.http.delete("/v1/executions/r")
        await opened.page.get_by_text("No call waits.").wait_for()
        await task


@pytest.mark.whole_console
async def test_a_tool_shows_its_origin_safety_action_and_schema(console):
    async with console(scripted_services(tools=ScriptedTools(), policy="*=ask")) as opened:
        await opened.open("#/tools")
        await opened.tab_to(".tool-list summary")
        await opened.press("Enter")
        shown = await opened.text(".tool-list")
        for words in ("clock", "asks first", "Tells the time.", "the deployment", "computes", "waits for an approval"):
            assert words in shown


@pytest.mark.whole_console
async def test_a_model_is_loaded_and_unloaded(console):
    serving = ScriptedServing()
    on_button = "() => document.activeElement.matches('tr[data-model=embedder] button')"
    async with console(orchestrator={"models_served": serving}) as opened:
        await opened.open("#/models")
        await opened.page.wait_for_selector("tr[data-model=embedder] button")
        row = opened.page.locator("tr[data-model=embedder]")
        assert "not loaded" in await row.inner_text()
        await opened.tab_to("tr[data-model=embedder] button")
        await opened.press("Enter")
        await opened.page.get_by_role("button", name="Unload embedder").wait_for()
        assert (await opened.said(), "83 MB" in await row.inner_text()) == ("embedder is loaded.", True)
        await opened.page.wait_for_function(on_button)
        serving.failures = [Aborted("2 requests use it", retry_after_s=1.0)]
        await opened.press("Enter")
        await opened.page.wait_for_selector(".failure")
        assert "2 requests use it" in await opened.text(".failure")
        await opened.page.wait_for_function(on_button)
        await opened.press("Enter")
        await opened.page.get_by_role("button", name="Load embedder", exact=True).wait_for()
        shown = await opened.text()
        for command in ("pagantic pull smollm2:135m", "PAGANTIC_INFERENCE_MODEL_PATH=qwen:0.5b pagantic up"):
            assert command in shown


@pytest.mark.whole_console
async def test_a_caller_who_is_no_operator_is_told_what_is_left_out(console):
    keys = {"admin_keys": lambda: {USER.key_id: USER}}
    async with console(orchestrator=keys) as opened:
        await opened.page.wait_for_selector("dialog[open]")
        await opened.type(ADMIN.text)
        await opened.press("Enter")
        await opened.page.wait_for_selector("dialog", state="hidden")
        await opened.open("#/models")
        await opened.page.get_by_text("lacks the scope admin (AUTH_DENIED)").wait_for()
        assert "scripted" in await opened.text("table")
        assert await opened.page.locator("table button").count() == 0
        await opened.open("#/load")
        await opened.page.wait_for_selector(".failure")
        shown = await opened.text(".failure")
        assert ("AUTH_DENIED" in shown, "Use a key with the scope" in shown) == (True, True)


@pytest.mark.whole_console
async def test_the_load_of_each_replica_is_shown_and_asked_for_while_the_page_is_seen(console):
    serving = ScriptedServing()
    away = ReplicaReport("local", "ipv4:127.0.0.1:1", error=Unavailable("gone", code=ErrorCode.INFERENCE_ENGINE_ERROR))
    serving.replicas.append(away)
    async with console(orchestrator={"models_served": serving}) as opened:
        await opened.open("#/load")
        await opened.page.wait_for_selector(".replicas .meters")
        shown = await opened.text()
        for words in ("0 of 8", "2 of 64", "3 of 8", "4,096 of 16,384", "120", "INFERENCE_ENGINE_ERROR"):
            assert words in shown
        here = serving.replicas[0]
        serving.replicas[0] = replace(here, load=replace(LOAD, output_tokens_total=1500, queued=0))
        await opened.page.get_by_text("in the last minutes").wait_for()
        assert "1,500" in await opened.text(".replicas")
        await opened.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        await asyncio.sleep(2.5)  # a call that was due is made
        asked = serving.asked
        await asyncio.sleep(2.5)
        assert serving.asked == asked
        await opened.page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: false, configurable: true });"
            " document.dispatchEvent(new Event('visibilitychange'))"
        )
        for _ in range(100):
            if serving.asked > asked:
                break
            await asyncio.sleep(0.02)
        assert serving.asked > asked
        await opened.tab_to("#pause", back=True)
        await opened.press("Enter")
        assert await opened.page.get_attribute("#pause", "aria-pressed") == "true"
        await asyncio.sleep(0.5)  # a call that was on its way has come
        asked = serving.asked
        await asyncio.sleep(2.5)
        assert serving.asked == asked
