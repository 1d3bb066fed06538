"""Watchers see how far a tool call is; the timeline keeps only its beginning and its end."""

from pagantic_common.domain.messages import ToolCall, ToolProgress
from pagantic_common.rpc.call import call_stream
from tests.support.orchestrator_app import orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services


async def test_progress_is_streamed_under_its_call_and_not_stored(tmp_path):
    tools = ScriptedTools()
    tools.reports = [ToolProgress(1, 2, "half"), ToolProgress(2)]
    inference = ScriptedInference(answer("", calls=[ToolCall("c1", "clock", "{}")]), answer("noon"))
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        request = system_request(request_id="r")
        events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
        stored = await timeline(stub, "r")
    actions = [event.action for event in events if event.layer == "tools"]
    assert actions == ["tool.start", "tool.progress", "tool.progress", "tool.end"]
    half, whole = [event for event in events if event.HasField("tool_progress")]
    assert (half.tool_progress.progress, half.tool_progress.total, half.tool_progress.message) == (1, 2, "half")
    assert not whole.tool_progress.HasField("total")
    assert {half.tool_call_id, whole.tool_call_id} == {"c1"}
    assert half.correlation.caused_by == "inference-1"
    assert "tool.progress" not in {event.action for event in stored}
