"""Loops of agents that others wrote: the model calls a tool of theirs, they run it, and the model answers after it."""

import asyncio
import json

import anthropic
import pytest

from pagantic_common.domain.messages import Role, ToolCall
from tests.support.node_packages import INSTALL_S, installed
from tests.support.pages import ROOT
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

NODE = ROOT / "tests" / "e2e" / "node_http"
SAID = "It is noon."


class ClockUser(ScriptedInference):
    """Calls the caller's clock, and answers once it has the result."""

    async def infer(self, command, hints):
        self.outputs = [answer("", calls=[ToolCall("call_1", "clock", '{"zone":"UTC"}')])]
        if command.messages[-1].role is Role.TOOL:
            self.outputs = [answer(f"It is {command.messages[-1].content}.")]
        async for piece in super().infer(command, hints):
            yield piece


@pytest.mark.timeout(INSTALL_S + 60)
async def test_loops_in_node_run_a_tool_and_end_with_an_answer(served):
    program = installed(NODE) / "agents.mjs"
    async with served(scripted_services(ClockUser()), models={"*": ""}) as server:
        url = str(server.http.base_url).rstrip("/")
        process = await asyncio.create_subprocess_exec(
            "node", program, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        printed, noted = await process.communicate()
    assert process.returncode == 0, noted.decode()
    seen = json.loads(printed)
    assert seen["aiSdk"].pop("zones") == ["UTC"] * 4
    assert set(seen["aiSdk"].values()) == {SAID}
    assert seen["anthropic"] == {"text": SAID, "zones": ["UTC"]}


async def test_the_tool_runner_of_anthropics_package_ends_with_an_answer(served):
    zones = []

    @anthropic.beta_async_tool
    async def clock(zone: str) -> str:
        """Tells the time of a zone."""
        zones.append(zone)
        return "noon"

    async with served(scripted_services(ClockUser())) as server:
        url = str(server.http.base_url).rstrip("/")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            runner = client.beta.messages.tool_runner(
                model="", max_tokens=100, messages=[{"role": "user", "content": "What time is it?"}], tools=[clock]
            )
            last = await runner.until_done()
    assert "".join(block.text for block in last.content) == SAID
    assert zones == ["UTC"]
