"""Calls of one turn run beside each other, and one that fails stops no other."""

import asyncio

from pagantic_common.domain.errors import ErrorCode, Unavailable
from pagantic_common.domain.messages import ToolCall
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services


class MeetingTools(ScriptedTools):
    """Calls end once `count` of them run at the same time; that with the number 3 fails."""

    def __init__(self, count):
        super().__init__()
        self.meeting = asyncio.Barrier(count)

    async def execute(self, call, report):
        await self.meeting.wait()
        if call.id == "c3":
            raise Unavailable("lost", code=ErrorCode.TOOL_UNAVAILABLE)
        return await super().execute(call, report)


async def test_ten_calls_run_at_once_and_the_one_that_fails_stops_no_other(tmp_path):
    calls = [ToolCall(f"c{number}", "clock", f'{{"n": {number}}}') for number in range(10)]
    inference = ScriptedInference(answer("", calls=calls), answer("done"))
    services = scripted_services(inference=inference, tools=MeetingTools(len(calls)))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request("Go."))
    assert [record.id for record in response.tool_calls_made] == [call.id for call in calls]
    assert [record.id for record in response.tool_calls_made if record.is_error] == ["c3"]
    assert response.content == "done"
