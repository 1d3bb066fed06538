"""The orchestrator over a real socket and a real journal, with scripted services behind it."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.errors import NotFound, PaganticError
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.server import serving
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.app.access.audit import Audit
from services.orchestrator.app.access.keys import Keys
from services.orchestrator.app.budgets import Budgets
from services.orchestrator.app.catalog import Templates, ToolCatalog
from services.orchestrator.app.executions import Executions
from services.orchestrator.app.history import History
from services.orchestrator.app.policy.charge import Charge
from services.orchestrator.app.presence import Presence
from services.orchestrator.app.running.environment import Limits, make_environment
from services.orchestrator.app.running.models import Models
from services.orchestrator.app.waits import Waits
from services.orchestrator.servicer import SCOPES, SERVICE_NAME, OrchestratorServicer
from tests.support.databases import sqlite_url
from tests.support.scripted_services import scripted_services
from tests.support.scripted_serving import ScriptedServing


def journal_url(path):
    """Return the URL of the journal in a folder, which is made with its tables if it is not there."""
    return sqlite_url(path / "journal.sqlite3")


@asynccontextmanager
async def orchestrator(
    path,
    services=None,
    *,
    max_running=8,
    journal=None,
    presence=None,
    owner="local",
    url="",
    admin_keys=None,
    authenticator=None,
    approval_wait_s=30.0,
    beside=(),
    models_served=None,
    **limits,
):
    """Serve with a journal in this folder; `presence` are the settings of its loop, which else does not run.

    With `admin_keys`, which gives them, callers need a key; an `authenticator` of the test's own wins. Services
    `beside` share the port.
    """
    journal = journal or SqlJournal(url or journal_url(path), owner=owner)
    await journal.open()
    limits = Limits(max_running=max_running, **limits)
    budgets = Budgets(journal, SystemClock())
    services = replace(services or scripted_services(), waits=Waits(journal, SystemClock(), approval_wait_s))
    charge = Charge(budgets, limits.prices, services.inference.context_window)
    services = replace(services, around=(charge, *services.around))
    environment = make_environment(services, journal, SystemClock(), limits)
    executions = Executions(environment)
    loop = Presence(executions, journal, SystemClock(), owner, **(presence or {"resumes_plans": False}))
    if presence is not None:
        loop.start()
    try:
        keys = Keys(journal, admin_keys or dict, SystemClock())
        audit = Audit(journal, SystemClock())
        servicer = OrchestratorServicer(
            executions,
            History(journal, environment.storage),
            keys,
            budgets,
            audit,
            tools=ToolCatalog(services),
            models=Models(environment, executions.registry, models_served or ScriptedServing()),
            templates=Templates(services.prompts, journal),
        )
        if authenticator is None and admin_keys is not None:
            authenticator = keys
        registration = Registration(
            SERVICE_NAME, servicer.add_to, SCOPES, Guard(authenticator, on_denied=audit.note_denied)
        )
        async with serving([registration, *beside]) as (channel, address):
            stub = rpc.OrchestratorServiceStub(channel)
            stub.address = address
            stub.executions, stub.journal, stub.turns = executions, journal, environment.turns
            stub.budgets = budgets
            yield stub
    finally:
        await loop.stop()
        await executions.close()
        await budgets.stop()
        await journal.close()


async def crash(path, services, request, reached, stores=()):
    """Run a request until something is reached, and leave its journal as a process that died then would.

    Returns the folder of that journal; `stores` are actions of events that must be in it.
    """
    left = path / "left"
    async with orchestrator(path, services) as stub:
        running = asyncio.create_task(execute(stub, request))
        await asyncio.wait_for(reached.wait(), 60)
        await stored(stub, request.request_id, lambda events: set(stores) <= {event.action for event in events})
        leave(path, left)
        running.cancel()
        with suppress(asyncio.CancelledError, PaganticError):
            await running
    return left


def leave(path, left):
    """Copy a journal as a process that died now would leave it."""
    left.mkdir()
    with (
        closing(sqlite3.connect(path / "journal.sqlite3")) as source,
        closing(sqlite3.connect(left / "journal.sqlite3")) as copy,
    ):
        source.backup(copy)


def system_request(text="hi", **fields):
    fields.setdefault("mode", execution_pb2.MODE_CHAT)
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    return execution_pb2.SystemRequest(messages=[message], **fields)


async def execute(stub, request, timeout_s=10.0):
    return await call_unary("orchestrator", stub.Execute, request, timeout_s)


async def timeline(stub, request_id):
    reply = await call_unary("orchestrator", stub.GetTimeline, pb.GetTimelineRequest(request_id=request_id))
    return list(reply.events)


async def stored(stub, request_id, is_enough):
    """Wait until the timeline is as it is wanted."""
    for _ in range(500):
        if is_enough(await timeline(stub, request_id)):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the timeline did not become what was waited for")


async def ended(stub, request_id):
    """Wait until an execution is in a terminal state, and return it; it may not be admitted yet."""
    for _ in range(500):
        with suppress(NotFound):
            reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id=request_id))
            if reply.execution.HasField("response"):
                return reply.execution
        await asyncio.sleep(0.01)
    raise AssertionError("the execution did not end")
