"""Calls of one turn run beside each other, and one that fails stops no other."""

import asyncio

from pagantic_common.domain.errors import ErrorCode, Unavailable
from pagantic_common.domain.messages import ToolCall
from services.orchestrator.core.model.plan import MAX_PARALLEL_CALLS
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services


class MeetingTools(ScriptedTools):
    """Calls end once `count` of them run at the same time; that with the number 3 fails."""

    def __init__(self, count):
        super().__init__()
        self.meeting = asyncio.Barrier(count)
        self.running = self.most = 0

    async def execute(self, call, report):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.meeting.wait()
            if call.id == "c3":
                raise Unavailable("lost", code=ErrorCode.TOOL_UNAVAILABLE)
            return await super().execute(call, report)
        finally:
            self.running -= 1


async def ask(path, count, meeting):
    calls = [ToolCall(f"c{number}", "clock", f'{{"n": {number}}}') for number in range(count)]
    tools = MeetingTools(meeting)
    inference = ScriptedInference(answer("", calls=calls), answer("done"))
    async with orchestrator(path, scripted_services(inference=inference, tools=tools)) as stub:
        return await execute(stub, system_request("Go.")), tools


async def test_ten_calls_run_at_once_and_the_one_that_fails_stops_no_other(tmp_path):
    response, _ = await ask(tmp_path, 10, meeting=10)
    assert [record.id for record in response.tool_calls_made] == [f"c{number}" for number in range(10)]
    assert [record.id for record in response.tool_calls_made if record.is_error] == ["c3"]
    assert response.content == "done"


async def test_no_more_calls_run_at_once_than_may(tmp_path):
    response, tools = await ask(tmp_path, 2 * MAX_PARALLEL_CALLS, meeting=MAX_PARALLEL_CALLS)
    assert tools.most == MAX_PARALLEL_CALLS
    assert len(response.tool_calls_made) == 2 * MAX_PARALLEL_CALLS
