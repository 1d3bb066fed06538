"""Conversations, their turns, their values, and what they cost."""

import asyncio

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import execution_pb2, usage_total_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import (
    Aborted,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from pagantic_common.rpc.call import call_unary
from services.orchestrator.app.running.environment import MAX_WAITING_TURNS
from services.orchestrator.core.cost import Prices
from tests.support.keys import session
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import (
    ScriptedInference,
    answer,
    scripted_services,
)


async def test_a_session_remembers_and_a_failed_turn_leaves_nothing(tmp_path):
    inference = ScriptedInference(answer("one"), Unavailable("gone"), answer("two"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, system_request("first", session_id="s"))
        failed = await execute(stub, system_request("second", session_id="s"))
        assert failed.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_DEPENDENCY_UNAVAILABLE
        await execute(stub, system_request("third", session_id="s"))
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
        assert [message.content for message in reply.session.messages] == ["first", "one", "third", "two"]
        assert [message.content for message in inference.commands[-1].messages] == ["first", "one", "third"]
        await call_unary("orchestrator", stub.DeleteSession, pb.DeleteSessionRequest(session_id="s"))
        for method, request in (
            (stub.GetSession, pb.GetSessionRequest(session_id="s")),
            (stub.DeleteSession, pb.DeleteSessionRequest(session_id="s")),
        ):
            with pytest.raises(NotFound, match="no session has id 's'"):
                await call_unary("orchestrator", method, request)


async def test_executions_and_sessions_are_paged(tmp_path):
    async with orchestrator(tmp_path) as stub:
        for number in range(5):
            await execute(stub, system_request(request_id=f"r{number}", session_id=f"s{number}"))
        first = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest(page_size=3))
        assert [execution.request_id for execution in first.executions] == ["r4", "r3", "r2"]
        rest = pb.ListExecutionsRequest(page_size=3, page_token=first.next_page_token)
        second = await call_unary("orchestrator", stub.ListExecutions, rest)
        assert [execution.request_id for execution in second.executions] == ["r1", "r0"]
        assert not second.next_page_token
        sessions = await call_unary("orchestrator", stub.ListSessions, pb.ListSessionsRequest(page_size=2))
        assert [session.session_id for session in sessions.sessions] == ["s4", "s3"]
        for method, wrong in (
            (stub.ListExecutions, pb.ListExecutionsRequest(session_id="a\0")),
            (stub.ListExecutions, pb.ListExecutionsRequest(page_token="nope")),  # noqa: S106 - a page's
            (stub.ListExecutions, pb.ListExecutionsRequest(state=99)),
            (stub.ListSessions, pb.ListSessionsRequest(page_token="nope")),  # noqa: S106 - a page's
            (stub.GetUsage, pb.GetUsageRequest(page_token="nope")),  # noqa: S106 - a page's
            (stub.GetUsage, pb.GetUsageRequest(page_size=501)),
            (stub.GetUsage, pb.GetUsageRequest(group_by=[0])),
            (stub.GetUsage, pb.GetUsageRequest(group_by=[99])),
            (stub.GetUsage, pb.GetUsageRequest(group_by=[usage_total_pb2.USAGE_KEY_TENANT] * 5)),
            (stub.GetSession, pb.GetSessionRequest(session_id="s1", before_position=-1)),
            (stub.GetTimeline, pb.GetTimelineRequest(request_id="r1", after_sequence=-1)),
            (stub.GetUsage, pb.GetUsageRequest(model="a\0")),
            (stub.GetSession, pb.GetSessionRequest(session_id="s1", max_messages=-1)),
            (stub.GetTimeline, pb.GetTimelineRequest(request_id="r1", max_events=-1)),
        ):
            with pytest.raises(InvalidRequest):
                await call_unary("orchestrator", method, wrong)
        with pytest.raises(InvalidRequest, match="page_size"):
            await call_unary("orchestrator", stub.ListSessions, pb.ListSessionsRequest(page_size=501))


async def test_usage_and_cost_add_up_by_session_and_model(tmp_path):
    prices = {"": Prices(prompt_usd=100_000, cached_prompt_usd=0, output_usd=1_000_000)}
    async with orchestrator(tmp_path, prices=prices) as stub:
        hints = execution_pb2.ExecutionHints(model="other")
        for request in (system_request(session_id="s"), system_request(session_id="s"), system_request(hints=hints)):
            await execute(stub, request)
        reply = await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest())
        (of_session,) = (await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest(session_id="s"))).totals
        by_model = pb.GetUsageRequest(group_by=[usage_total_pb2.USAGE_KEY_MODEL])
        of_models = (await call_unary("orchestrator", stub.GetUsage, by_model)).totals
        whole = pb.GetUsageRequest(group_by=[usage_total_pb2.USAGE_KEY_TENANT])
        (of_tenant,) = (await call_unary("orchestrator", stub.GetUsage, whole)).totals
    assert [(one.model, one.session_id, one.requests) for one in of_models] == [("default", "", 2), ("other", "", 1)]
    assert (of_tenant.requests, of_tenant.prompt_tokens, of_tenant.cost_usd) == (3, 30, of_session.cost_usd)
    assert [(one.session_id, one.model, one.requests) for one in reply.totals] == [
        ("", "other", 1),
        ("s", "default", 2),
    ]
    assert reply.totals[0].cost_usd == 0, "no price is known"
    assert (of_session.prompt_tokens, of_session.output_tokens, of_session.cost_usd) == (20, 6, 2 * (1 + 3))


async def test_values_of_a_session_are_json_documents_under_ids(tmp_path):
    async with orchestrator(tmp_path) as stub:
        for wrong in (
            pb.UpdateSessionRequest(session_id="s", state_json={"a": "{"}),
            pb.UpdateSessionRequest(session_id="s", state_json={"a b": "1"}),
            pb.UpdateSessionRequest(session_id=""),
            pb.UpdateSessionRequest(session_id="s", removed_keys=["a\0"]),
            pb.UpdateSessionRequest(session_id="s", removed_keys=[f"k{number}" for number in range(101)]),
        ):
            with pytest.raises(InvalidRequest):
                await call_unary("orchestrator", stub.UpdateSession, wrong)
        asked = pb.UpdateSessionRequest(session_id="s", state_json={"a": "[1]", "b": "2"})
        await call_unary("orchestrator", stub.UpdateSession, asked)
        asked = pb.UpdateSessionRequest(session_id="s", removed_keys=["b"])
        reply = await call_unary("orchestrator", stub.UpdateSession, asked)
        assert dict(reply.session.state_json) == {"a": "[1]"}
        await execute(stub, system_request(session_id="s"))
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
        assert (reply.session.message_count, dict(reply.session.state_json)) == (2, {"a": "[1]"})


class Gated(ScriptedInference):
    """Answers one question for each release of its gate."""

    def __init__(self):
        super().__init__()
        self.gate = asyncio.Semaphore(0)

    async def infer(self, command, hints):
        await self.gate.acquire()
        async for piece in super().infer(command, hints):
            yield piece


async def in_line(stub, count):
    """Wait until so many want the turn of the session."""
    lines = stub.turns._lines
    while session("s") not in lines or lines[session("s")].count != count:  # noqa: ASYNC110 - there is no event of it
        await asyncio.sleep(0.005)


async def test_turns_of_one_session_come_in_their_order(tmp_path):
    inference, asked = Gated(), []
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_running=40) as stub:
        for number in range(9):
            asked.append(asyncio.create_task(execute(stub, system_request(f"q{number}", session_id="s"))))
            if number < 4:
                await in_line(stub, number + 1)
            else:  # one leaves for each that comes
                inference.gate.release()
                await asked[number - 4]
                await in_line(stub, 4)
        for _ in range(4):
            inference.gate.release()
        await asyncio.gather(*asked)
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    assert [message.content for message in reply.session.messages][::2] == [f"q{number}" for number in range(9)]


async def test_too_many_turns_of_one_session_do_not_keep_out_the_others(tmp_path):
    inference = Gated()
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_running=60) as stub:
        asked = [
            asyncio.create_task(execute(stub, system_request(session_id="s"))) for _ in range(MAX_WAITING_TURNS + 9)
        ]
        await in_line(stub, MAX_WAITING_TURNS + 1)
        refused = set()
        while len(refused) < 8:
            refused, _ = await asyncio.wait(asked, timeout=0.05)
        for one in refused:
            with pytest.raises(Aborted, match="wait already"):
                one.result()
        for _ in range(MAX_WAITING_TURNS + 1):
            inference.gate.release()
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(one, Aborted) for one in ended].count(True) == 8
        assert not stub.turns._lines
