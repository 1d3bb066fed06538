"""What is acknowledged is stored: slow and failing journals, restarts, retention."""

import asyncio
import sqlite3

import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import (
    ErrorCode,
    Internal,
    NotFound,
    Unavailable,
)
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.convert.request import fingerprint_of, request_from_proto
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.replay import Admitted
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import ExecutionRecord
from tests.support.orchestrator_app import ended, execute, journal_url, orchestrator, system_request, timeline
from tests.support.scripted_services import (
    ScriptedInference,
    answer,
    scripted_services,
)


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


async def test_a_cancel_while_the_outcome_is_stored_changes_nothing(tmp_path):
    inference = ScriptedInference(answer("done"))
    journal = SlowJournal(tmp_path)
    async with orchestrator(tmp_path, scripted_services(inference=inference), journal=journal) as stub:
        running = asyncio.create_task(execute(stub, system_request(request_id="r1")))
        await asyncio.wait_for(journal.finishing.wait(), 60)
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
        await asyncio.wait_for(journal.admitting.wait(), 60)
        call.cancel()
        await asyncio.sleep(2 * SlowJournal.delay_s)
        execution = await ended(stub, "r1")
        events = await timeline(stub, "r1")
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
    assert events[0].transition.to_state == execution_pb2.LIFECYCLE_STATE_INIT
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_ended_executions_are_kept_for_their_time_only(tmp_path):
    url = journal_url(tmp_path)
    async with orchestrator(tmp_path, journal=SqlJournal(url, retention_s=0.5)) as stub:
        await execute(stub, system_request(request_id="old"))
    await asyncio.sleep(0.6)
    async with orchestrator(tmp_path, journal=SqlJournal(url, retention_s=0.5)) as stub:
        await execute(stub, system_request(request_id="new"))
        await stub.journal._purger.purge()
        listed = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
        assert [execution.request_id for execution in listed.executions] == ["new"]
        with pytest.raises(NotFound):
            await timeline(stub, "old")


class Faulty(SqlJournal):
    """Fails the writes that are chosen, alone or with all that are written together."""

    error = sqlite3.IntegrityError("not this one")

    def fail_when(self, is_chosen):
        run, writes = self._writes.write_all, self._writes

        def write_all(db, given):
            if any(is_chosen(write) for write in given):
                raise self.error
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
    async with orchestrator(tmp_path, journal=journal, presence={"resumes_plans": False, "beat_s": 0.02}) as stub:
        journal.fail_when(is_chosen)
        with pytest.raises(Internal, match="could not be recorded"):
            await execute(stub, system_request(request_id="r"))
        journal.recover()
        await released(stub, "r")
        response = await execute(stub, system_request(request_id="r"))
        events = await timeline(stub, "r")
    assert response.content == "hello"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_a_request_without_an_id_that_cannot_be_stored_ends_at_once(tmp_path):
    journal, inference = SqlJournal(journal_url(tmp_path)), ScriptedInference(None)  # decodes for ever
    async with orchestrator(tmp_path, scripted_services(inference=inference), journal=journal) as stub:

        def admit_all(*_arguments):
            raise sqlite3.OperationalError("disk I/O error")

        journal._writes.admit_all = admit_all
        with pytest.raises(Unavailable, match="disk I/O error"):
            await execute(stub, system_request())
        del journal._writes.admit_all
        assert stub.executions.registry.count == 0


async def released(stub, request_id):
    for _ in range(300):
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id=request_id))
        if reply.execution.interrupted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the execution is not interrupted")


@pytest.mark.parametrize("is_chosen", [ends, prepares])
async def test_a_journal_that_fails_is_named_and_the_request_goes_on_once_it_works(tmp_path, is_chosen):
    journal = Faulty(journal_url(tmp_path))
    journal.error = sqlite3.OperationalError("database or disk is full")
    async with orchestrator(tmp_path, journal=journal, presence={"resumes_plans": False, "beat_s": 0.02}) as stub:
        journal.fail_when(is_chosen)
        with pytest.raises(
            Unavailable, match="the journal's database does not answer: database or disk is full"
        ) as told:
            await execute(stub, system_request(request_id="r"))
        assert told.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
        journal.recover()
        await released(stub, "r")
        assert (await execute(stub, system_request(request_id="r"))).content == "hello"
