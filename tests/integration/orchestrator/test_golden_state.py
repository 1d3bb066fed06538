"""This version on the journal of commit d7d019f4, the last before children had paths.

The journal has two turns of the session `ana`, the ended plan `plan-done`, the plan `plan-running`, whose orchestrator
died during the third inference of the child `plan/think`, and the chat `waiting`, a call of which waits for approval.
All other work after the crash is done by scripted services.
"""

import shutil
from pathlib import Path

import pytest

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import approval_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.rpc.call import call_unary
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from tests.integration.orchestrator.test_replays import names, steps_of
from tests.support.orchestrator_app import ended, execute, journal_url, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services

STATE = Path(__file__).parents[2] / "golden" / "state-d7d019f4" / "orchestrator"
TEN_YEARS_S = 10 * 365 * 86_400.0
CHILD = [f"plan/think/{name}" for name in ("prepare", "infer-1", "tools-1", "infer-2")]


@pytest.fixture
def journal(tmp_path):
    shutil.copytree(STATE, tmp_path / "state")
    # Ended executions would otherwise be purged at the start.
    return SqlJournal(journal_url(tmp_path / "state"), retention_s=TEN_YEARS_S)


async def resume(stub, request_id):
    await call_unary("orchestrator", stub.ResumeExecution, pb.ResumeExecutionRequest(request_id=request_id))
    return (await ended(stub, request_id)).response


async def test_a_running_plan_goes_on_inside_its_child(tmp_path, journal):
    inference, tools = ScriptedInference(answer("thought"), answer("said")), ScriptedTools(is_idempotent=True)
    async with orchestrator(tmp_path, scripted_services(inference, tools=tools), journal=journal) as stub:
        response = await resume(stub, "plan-running")
        assert [(result.name, result.output.content) for result in response.step_results[1:]] == [
            ("think", "thought"), ("say", "said"),
        ]  # fmt: skip
        assert (len(inference.commands), tools.calls) == (2, [])
        assert [call.id for call in response.tool_calls_made] == ["time-1", "c2", "c3"]
        inside = [*CHILD, "plan/think/tools-2", "plan/think/infer-3"]
        after = ["plan/think", "plan/say/prepare", "plan/say/infer-1", "plan/say"]
        assert names(await steps_of(stub, "plan-running")) == ["prepare", "plan/time", *inside, *after]
        sequences = [event.sequence for event in await timeline(stub, "plan-running")]
        assert sequences == list(range(1, len(sequences) + 1))


async def test_an_ended_plan_shows_its_tree_and_is_replayed_from_inside_it(tmp_path, journal):
    inference = ScriptedInference(answer("thought anew"), answer("said anew"))
    async with orchestrator(tmp_path, scripted_services(inference), journal=journal) as stub:
        after = ["plan/think", "plan/say/prepare", "plan/say/infer-1", "plan/say"]
        assert names(await steps_of(stub, "plan-done")) == ["prepare", "plan/time", *CHILD, *after]
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="plan-done"))
        again = reply.execution.request
        again.request_id = "again"
        again.replay.CopyFrom(execution_pb2.Replay(request_id="plan-done", from_step="plan/think/infer-2"))
        await execute(stub, again)
        response = (await ended(stub, "again")).response
        assert [result.output.content for result in response.step_results[1:]] == ["thought anew", "said anew"]


async def test_a_waiting_approval_still_waits_and_is_decided(tmp_path, journal):
    inference, tools = ScriptedInference(answer("It is noon.")), ScriptedTools(is_idempotent=True)
    services = scripted_services(inference, tools=tools)
    async with orchestrator(tmp_path, services, journal=journal, approval_wait_s=TEN_YEARS_S) as stub:
        reply = await call_unary("orchestrator", stub.ListApprovals, pb.ListApprovalsRequest())
        assert [(asked.request_id, asked.tool_call_id) for asked in reply.approvals] == [("waiting", "c2")]
        decision = approval_pb2.APPROVAL_DECISION_APPROVED
        request = pb.ResolveApprovalRequest(request_id="waiting", tool_call_id="c2", decision=decision)
        await call_unary("orchestrator", stub.ResolveApproval, request)
        assert (await resume(stub, "waiting")).content == "It is noon."
        assert [call.id for call in tools.calls] == ["c2"]


async def test_a_conversation_goes_on(tmp_path, journal):
    inference = ScriptedInference(answer("Still noon."))
    async with orchestrator(tmp_path, scripted_services(inference), journal=journal) as stub:
        await execute(stub, system_request("And now?", session_id="ana", request_id="turn-3"))
        contents = [message.content for message in inference.commands[0].messages]
        before = ["What time is it?", "It is noon.", "Again?", "Noon, as I said."]
        assert contents[-5:] == [*before, "And now?"]
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="ana"))
        assert [message.role for message in reply.session.messages].count(message_pb2.ROLE_ASSISTANT) == 3
