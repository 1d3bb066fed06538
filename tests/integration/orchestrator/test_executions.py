"""The orchestrator over a real socket and a real journal, with scripted services behind it."""

import asyncio
import sqlite3

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import context_service_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import (
    Aborted,
    Cancelled,
    Conflict,
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.sql_journal import SqlJournal
from services.orchestrator.app.turns import MAX_WAITING
from services.orchestrator.convert.request import fingerprint_of, request_from_proto
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.replay import Admitted
from services.orchestrator.core.request import Mode
from services.orchestrator.core.run import Prepared
from services.orchestrator.ports.journal import ExecutionRecord
from tests.support.orchestrator_app import ended, execute, journal_url, orchestrator, system_request, timeline
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedContext,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)


def vote_request(tools=(), **voting):
    output = contract_pb2.OutputContract(schema_json="{}")
    fields = {"output": output, "voting": execution_pb2.Voting(**voting), "tools": tools}
    return system_request(mode=execution_pb2.MODE_REDUNDANT, **fields)


FAST = {"resumes_plans": False, "beat_s": 0.02}
CALL = ToolCall("c1", "clock", '{"zone":"UTC"}')


class SlowJournal(SqlJournal):
    """A journal on a slow disk; `failure` makes its last write fail."""

    delay_s = 0.15
    failure = None

    def __init__(self, path):
        super().__init__(journal_url(path))
        self.admitting, self.finishing = asyncio.Event(), asyncio.Event()

    async def admit(self, record, admitted, *, takes_turn=False):
        self.admitting.set()
        await asyncio.sleep(self.delay_s)
        return await super().admit(record, admitted, takes_turn=takes_turn)

    async def write(self, write, *, can_wait=False):
        if write.record.response is not None:
            self.finishing.set()
            await asyncio.sleep(self.delay_s)
            if self.failure is not None:
                raise self.failure
        await super().write(write, can_wait=can_wait)


def structured(**fields):
    output = contract_pb2.OutputContract(schema_json='{"type":"object"}')
    return system_request(mode=execution_pb2.MODE_STRUCTURED, output=output, **fields)


async def test_a_chat_answers_and_its_timeline_has_no_gaps(tmp_path):
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, system_request(request_id="r1"))
        assert response.content == "hello"
        assert response.token_usage.output_tokens == 3
        events = await timeline(stub, "r1")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    states = [event.transition.to for event in events if event.WhichOneof("event") == "transition"]
    assert [execution_pb2.LifecycleState.Name(state).removeprefix("LIFECYCLE_STATE_") for state in states] == [
        "INIT",
        "PREPARE",
        "EXECUTE",
        "COMPLETE",
    ]
    assert all(event.correlation.request_id == "r1" and event.correlation.trace_id for event in events)
    assert events[-1].completed.response == response


async def test_a_tool_call_is_told_with_its_cause_and_duration(tmp_path):
    services = scripted_services(inference=ScriptedInference(answer("", [CALL]), answer("noon")))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(request_id="r1"))
        events = await timeline(stub, "r1")
    assert [call.result for call in response.tool_calls_made] == ["noon"]
    actions = [event.action for event in events if not event.action.startswith("lifecycle")]
    assert actions == [
        "inference.start",
        "inference.end",
        "tool.start",
        "tool.end",
        "inference.start",
        "inference.end",
        "execution.end",
    ]
    by_action = {event.action: event for event in events}
    assert by_action["tool.end"].correlation.caused_by == "inference-1"
    assert by_action["inference.end"].correlation.caused_by == "c1"
    assert by_action["tool.end"].HasField("duration")


async def test_a_stream_gives_text_between_stored_events_and_ends_with_completed(tmp_path):
    services = scripted_services(inference=ScriptedInference(answer("one two three")))
    async with orchestrator(tmp_path, services) as stub:
        request = system_request()
        events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds.count("content_delta") == 3
    assert kinds[-1] == "completed"
    assert "".join(event.content_delta.text for event in events) == "onetwothree"


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


async def test_structured_output_is_retried_and_its_streamed_text_is_discarded(tmp_path):
    inference = ScriptedInference(answer("bad"), answer("{}"))
    services = scripted_services(inference=inference, constraint=ScriptedConstraint("bad"))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, structured(request_id="r1"))
        events = await timeline(stub, "r1")
    assert response.structured_output_json == "{}"
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED
    assert "attempt.discarded" in [event.action for event in events]
    assert events[-1].attempt == 2


async def test_the_same_id_and_payload_runs_once_and_another_payload_is_refused(tmp_path):
    inference = ScriptedInference(answer("only"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        first = await execute(stub, system_request(request_id="r1"))
        assert await execute(stub, system_request(request_id="r1")) == first
        assert len(inference.commands) == 1
        with pytest.raises(Conflict):
            await execute(stub, system_request("other", request_id="r1"))


async def test_a_second_caller_joins_the_running_execution(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        both = [asyncio.create_task(execute(stub, system_request(request_id="r1"))) for _ in range(2)]
        await inference.waiting.wait()
        reply = await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r1"))
        assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
        first, second = await asyncio.gather(*both)
    assert first == second
    assert first.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
    assert len(inference.commands) == 1


async def test_a_caller_that_goes_away_stops_the_inference(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        call = stub.Execute(system_request(request_id="r1"))
        await inference.waiting.wait()
        call.cancel()
        await asyncio.wait_for(inference.stopped.wait(), 5)
        execution = await ended(stub, "r1")
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
    assert execution.response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL


async def test_a_hint_timeout_is_a_response_and_the_callers_deadline_a_status(tmp_path):
    async with orchestrator(tmp_path, scripted_services(inference=ScriptedInference(None))) as stub:
        request = system_request()
        request.hints.timeout.FromMilliseconds(100)
        response = await execute(stub, request)
        assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
        with pytest.raises((DeadlineExceeded, Cancelled)):
            await execute(stub, system_request(request_id="late"), timeout_s=0.6)
        execution = await ended(stub, "late")
    assert execution.response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT


async def test_a_timeout_of_zero_is_none(tmp_path):
    async with orchestrator(tmp_path) as stub:
        request = system_request()
        request.hints.timeout.FromMilliseconds(0)
        assert (await execute(stub, request)).content == "hello"


@pytest.mark.parametrize(
    ("request_", "error", "wrong"),
    [
        (execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT), InvalidRequest, "messages is empty"),
        (system_request(mode=execution_pb2.MODE_UNSPECIFIED), InvalidRequest, "mode 0"),
        (system_request(mode=99), InvalidRequest, "mode 99"),
        (vote_request(n=17), InvalidRequest, "voting.n is 17"),
        (vote_request(n=-1), InvalidRequest, "voting.n is -1"),
        (vote_request(min_agreement=1.5), InvalidRequest, "voting.min_agreement is 1.5"),
        (vote_request(strategy=9), InvalidRequest, "voting.strategy 9"),
        (vote_request(tools=["clock"]), InvalidRequest, "REDUNDANT runs no tools"),
        (system_request(request_id="no spaces"), InvalidRequest, "request_id"),
        (system_request(hints=execution_pb2.ExecutionHints(model="a\0")), InvalidRequest, "hints.model"),
        (system_request(hints=execution_pb2.ExecutionHints(model="a" * 201)), InvalidRequest, "hints.model"),
        (
            execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT, messages=[message_pb2.Message(content="x")]),
            InvalidRequest,
            "message role 0",
        ),
    ],
)
async def test_a_malformed_envelope_is_a_status_and_nothing_is_executed(tmp_path, request_, error, wrong):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(error, match=wrong):
            await execute(stub, request_)
        listed = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
        assert not listed.executions


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (system_request(mode=execution_pb2.MODE_STRUCTURED), error_pb2.ERROR_CODE_CONFIG_SCHEMA_REQUIRED),
        (
            system_request(output=contract_pb2.OutputContract(schema_json="{")),
            error_pb2.ERROR_CODE_CONFIG_INVALID,
        ),
        (system_request(tools=["hammer"]), error_pb2.ERROR_CODE_TOOL_NOT_FOUND),
    ],
)
async def test_once_admitted_a_wrong_configuration_is_a_response(tmp_path, request_, code):
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, request_)
    assert response.error.code == code
    assert not response.error.retryable
    assert response.error.message


async def test_a_chat_goes_on_without_tools_or_context_that_cannot_be_reached(tmp_path):
    tools, context = ScriptedTools(), ScriptedContext()
    tools.failure = context.failure = Unavailable("down")
    async with orchestrator(tmp_path, scripted_services(tools=tools, context=context)) as stub:
        policy = context_service_pb2.ContextPolicy(collection="c")
        response = await execute(stub, system_request(request_id="r1", context=policy))
        assert response.content == "hello"
        retrieved = [event for event in await timeline(stub, "r1") if event.action == "context.retrieved"]
        assert retrieved[0].error.message == "down"
        named = await execute(stub, system_request(tools=["clock"]))
        assert named.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_DEPENDENCY_UNAVAILABLE
        assert named.error.retryable


async def test_one_more_execution_than_the_limit_is_overloaded(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_running=1) as stub:
        call = stub.Execute(system_request())
        await inference.waiting.wait()
        with pytest.raises(Overloaded) as caught:
            await execute(stub, system_request())
        assert caught.value.retry_after_s
        call.cancel()


async def test_after_a_restart_responses_are_there_and_what_ran_is_interrupted(tmp_path):
    async with orchestrator(tmp_path) as stub:
        before = await execute(stub, system_request(request_id="done"))
    journal, now = SqlJournal(journal_url(tmp_path)), SystemClock().now()
    await journal.open()
    fingerprint = fingerprint_of(system_request())
    record = ExecutionRecord("live", "", "", Mode.CHAT, now, State.INIT, now, 1, fingerprint)
    await journal.admit(record, Admitted(request_from_proto(system_request(), "live")))
    await journal.close()
    async with orchestrator(tmp_path, scripted_services(inference=ScriptedInference(answer("new")))) as stub:
        assert await execute(stub, system_request(request_id="done")) == before
        for request_id, is_interrupted in (("done", False), ("live", True)):
            asked = pb.GetExecutionRequest(request_id=request_id)
            reply = await call_unary("orchestrator", stub.GetExecution, asked)
            assert reply.execution.interrupted == is_interrupted
        assert (await execute(stub, system_request(request_id="live"))).content == "new"
        with pytest.raises(NotFound, match="no execution has request_id 'never'"):
            await timeline(stub, "never")


async def test_a_bug_is_a_response_with_an_error_id_and_leaks_nothing(tmp_path):
    inference = ScriptedInference(ZeroDivisionError("secret"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, system_request())
    assert "internal error" in response.error.message
    assert "secret" not in response.error.message


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
            (stub.ListExecutions, pb.ListExecutionsRequest(page_token="a b")),  # noqa: S106 - a page's
            (stub.GetUsage, pb.GetUsageRequest(model="a\0")),
            (stub.GetSession, pb.GetSessionRequest(session_id="s1", max_messages=-1)),
            (stub.GetTimeline, pb.GetTimelineRequest(request_id="r1", max_events=-1)),
        ):
            with pytest.raises(InvalidRequest):
                await call_unary("orchestrator", method, wrong)
        with pytest.raises(InvalidRequest, match="page_size"):
            await call_unary("orchestrator", stub.ListSessions, pb.ListSessionsRequest(page_size=501))


async def test_a_failure_code_of_a_service_reaches_the_caller_as_it_was(tmp_path):
    constraint = ScriptedConstraint()
    constraint.failure = InvalidRequest("no", code=ErrorCode.CONSTRAINT_TOO_COMPLEX)
    async with orchestrator(tmp_path, scripted_services(constraint=constraint)) as stub:
        response = await execute(stub, structured())
    assert response.error.code == error_pb2.ERROR_CODE_CONSTRAINT_TOO_COMPLEX


async def test_a_cancellation_before_the_run_has_started_is_not_lost(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        for number in range(20):
            request = system_request(request_id=f"early-{number}")
            running = asyncio.create_task(execute(stub, request))
            while True:
                try:
                    cancel = pb.CancelExecutionRequest(request_id=request.request_id)
                    reply = await call_unary("orchestrator", stub.CancelExecution, cancel)
                    break
                except NotFound:
                    await asyncio.sleep(0)
            assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
            assert (await running).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL


async def test_two_callers_of_one_stored_response_both_get_it(tmp_path):
    async with orchestrator(tmp_path) as stub:
        before = await execute(stub, system_request(request_id="done"))
    async with orchestrator(tmp_path) as stub:
        both = await asyncio.gather(*(execute(stub, system_request(request_id="done")) for _ in range(2)))
    assert both == [before, before]


async def test_services_are_called_in_the_name_of_the_request_and_in_its_trace(tmp_path):
    tools, trace_id = ScriptedTools(), "0af7651916cd43dd8448eb211c80319c"
    async with orchestrator(tmp_path, scripted_services(tools=tools)) as stub:
        await execute(stub, system_request(request_id="r1", session_id="s1", trace_id=trace_id))
        events = await timeline(stub, "r1")
    (correlation,) = tools.correlations
    assert (correlation.request_id, correlation.session_id, correlation.trace_id) == ("r1", "s1", trace_id)
    assert {event.correlation.trace_id for event in events} == {trace_id}
    assert all(event.correlation.span_id for event in events)


async def test_a_call_inside_a_trace_is_part_of_it_and_its_events_name_the_callers_span(tmp_path):
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with orchestrator(tmp_path) as stub:
        await stub.Execute(system_request(request_id="r1"), metadata=(("traceparent", traceparent),))
        events = await timeline(stub, "r1")
    assert {event.correlation.trace_id for event in events} == {"0af7651916cd43dd8448eb211c80319c"}
    assert {event.correlation.parent_span_id for event in events} == {"b7ad6b7169203331"}
    assert "b7ad6b7169203331" not in {event.correlation.span_id for event in events}


async def test_a_cancel_while_the_outcome_is_stored_changes_nothing(tmp_path):
    inference = ScriptedInference(answer("done"))
    journal = SlowJournal(tmp_path)
    async with orchestrator(tmp_path, scripted_services(inference=inference), journal=journal) as stub:
        running = asyncio.create_task(execute(stub, system_request(request_id="r1")))
        await asyncio.wait_for(journal.finishing.wait(), 5)
        reply = await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r1"))
        response = await running
        assert reply.state == execution_pb2.LIFECYCLE_STATE_COMPLETE
        assert response.content == "done"
        assert [event.action for event in await timeline(stub, "r1")].count("execution.end") == 1


async def test_a_journal_that_fails_leaves_nobody_waiting(tmp_path):
    journal = SlowJournal(tmp_path)
    journal.failure = OSError("disk full")
    async with orchestrator(tmp_path, journal=journal) as stub:
        with pytest.raises(Internal, match="could not be recorded"):
            await execute(stub, system_request())


async def test_a_caller_that_leaves_while_it_is_admitted_leaves_no_zombie(tmp_path):
    journal = SlowJournal(tmp_path)
    async with orchestrator(tmp_path, scripted_services(inference=ScriptedInference(None)), journal=journal) as stub:
        call = stub.Execute(system_request(request_id="r1"))
        await asyncio.wait_for(journal.admitting.wait(), 5)
        call.cancel()
        await asyncio.sleep(2 * SlowJournal.delay_s)
        execution = await ended(stub, "r1")
        events = await timeline(stub, "r1")
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
    assert events[0].transition.to == execution_pb2.LIFECYCLE_STATE_INIT
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_the_deadline_of_one_caller_does_not_end_the_run_of_another(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        hurried = asyncio.create_task(execute(stub, system_request(request_id="r1"), timeout_s=1.5))
        await inference.waiting.wait()
        patient = asyncio.create_task(execute(stub, system_request(request_id="r1"), timeout_s=30))
        with pytest.raises(DeadlineExceeded):
            await hurried
        await asyncio.sleep(0.1)
        assert not inference.stopped.is_set()
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r1"))
        assert (await patient).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL


async def test_ended_executions_are_kept_for_their_time_only(tmp_path):
    url = journal_url(tmp_path)
    async with orchestrator(tmp_path, journal=SqlJournal(url, retention_s=0.05)) as stub:
        await execute(stub, system_request(request_id="old"))
    await asyncio.sleep(0.1)
    async with orchestrator(tmp_path, journal=SqlJournal(url, retention_s=0.05)) as stub:
        await execute(stub, system_request(request_id="new"))
        listed = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
        assert [execution.request_id for execution in listed.executions] == ["new"]
        with pytest.raises(NotFound):
            await timeline(stub, "old")


async def test_usage_and_cost_add_up_by_session_and_model(tmp_path):
    prices = {"": Prices(prompt_usd=100_000, cached_prompt_usd=0, output_usd=1_000_000)}
    async with orchestrator(tmp_path, prices=prices) as stub:
        hints = execution_pb2.ExecutionHints(model="other")
        for request in (system_request(session_id="s"), system_request(session_id="s"), system_request(hints=hints)):
            await execute(stub, request)
        reply = await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest())
        (of_session,) = (await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest(session_id="s"))).totals
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


class Faulty(SqlJournal):
    """Fails the writes that are chosen, alone or with all that are written together."""

    def fail_when(self, is_chosen):
        run, writes = self._writes.write_all, self._writes

        def write_all(db, given):
            if any(is_chosen(write) for write in given):
                raise sqlite3.IntegrityError("not this one")
            return run(db, given)

        writes.write_all = write_all

    def recover(self):
        del self._writes.write_all


def ends(write):
    return write.record.response is not None


def prepares(write):
    return any(isinstance(entry, Prepared) for entry in write.entries)


@pytest.mark.parametrize("is_chosen", [ends, prepares])
async def test_nothing_is_acknowledged_that_is_not_stored(tmp_path, is_chosen):
    journal = Faulty(journal_url(tmp_path))
    async with orchestrator(tmp_path, journal=journal, presence=FAST) as stub:
        journal.fail_when(is_chosen)
        with pytest.raises(Internal, match="could not be recorded"):
            await execute(stub, system_request(request_id="r"))
        journal.recover()
        await released(stub, "r")
        response = await execute(stub, system_request(request_id="r"))
        events = await timeline(stub, "r")
    assert response.content == "hello"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def released(stub, request_id):
    for _ in range(300):
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id=request_id))
        if reply.execution.interrupted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the execution is not interrupted")


async def test_turns_of_one_session_come_in_their_order(tmp_path):
    inference = ScriptedInference(answer("ok"))
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_running=40) as stub:
        asked = []
        for number in range(12):
            asked.append(asyncio.create_task(execute(stub, system_request(f"q{number}", session_id="s"))))
            await asyncio.sleep(0.004)
        await asyncio.gather(*asked)
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    assert [message.content for message in reply.session.messages][::2] == [f"q{number}" for number in range(12)]


async def test_too_many_turns_of_one_session_do_not_keep_out_the_others(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_running=40) as stub:
        waiting = [asyncio.create_task(execute(stub, system_request(session_id="s"))) for _ in range(MAX_WAITING + 1)]
        lines = stub.executions._turns._lines
        while "s" not in lines or lines["s"].count <= MAX_WAITING:  # noqa: ASYNC110 - there is no event of it
            await asyncio.sleep(0.01)
        with pytest.raises(Aborted, match="wait already"):
            await execute(stub, system_request(session_id="s"))
        for one in waiting:
            one.cancel()
