"""Three tenants use the same ids in any order: each sees what a system of its own would show it."""

import asyncio
import json
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import NotFound
from tests.integration.orchestrator.test_identity import ask, guarded, key_of
from tests.support.orchestrator_app import system_request

TENANTS = ("acme", "beta", "default")
SESSION_OF = {"a": "s", "b": "t", "c": "s", "d": ""}  # by request id: under one id comes one payload
TENANT, REQUEST, SESSION = st.sampled_from(TENANTS), st.sampled_from(sorted(SESSION_OF)), st.sampled_from("st")


class Alone:
    """What one tenant would have alone."""

    def __init__(self):
        self.executions = set()
        self.turns = Counter()
        self.values = {}
        self.requests = 0

    @property
    def sessions(self):
        return {session for session, count in self.turns.items() if count} | set(self.values)


class Tenants(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.opened = guarded(Path(self.folder.name))
        self.stub = self.runner.run(self.opened.__aenter__())
        self.keys = {tenant: self.runner.run(key_of(self.stub, tenant)).text for tenant in TENANTS}
        self.alone = {tenant: Alone() for tenant in TENANTS}

    def teardown(self):
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()
        self.folder.cleanup()

    def ask(self, tenant, method, request):
        return self.runner.run(ask(self.stub, method, request, self.keys[tenant]))

    @contextmanager
    def found_only_if(self, is_there):
        if is_there:
            yield
            return
        with pytest.raises(NotFound):
            yield

    @rule(tenant=TENANT, request_id=REQUEST)
    def execute(self, tenant, request_id):
        session = SESSION_OF[request_id]
        request = system_request(f"{request_id} of {tenant}", request_id=request_id, session_id=session)
        assert self.ask(tenant, "Execute", request).content == "hello"
        alone = self.alone[tenant]
        if request_id not in alone.executions:
            alone.executions.add(request_id)
            alone.requests += 1
            if session:
                alone.turns[session] += 1

    @rule(tenant=TENANT, request_id=REQUEST)
    def read_execution(self, tenant, request_id):
        is_there = request_id in self.alone[tenant].executions
        for method, request in (
            ("GetExecution", pb.GetExecutionRequest(request_id=request_id)),
            ("GetTimeline", pb.GetTimelineRequest(request_id=request_id)),
            ("CancelExecution", pb.CancelExecutionRequest(request_id=request_id)),
        ):
            with self.found_only_if(is_there):
                self.ask(tenant, method, request)

    @rule(tenant=TENANT)
    def list_all(self, tenant):
        alone = self.alone[tenant]
        executions = self.ask(tenant, "ListExecutions", pb.ListExecutionsRequest()).executions
        assert sorted(one.request_id for one in executions) == sorted(alone.executions)
        sessions = self.ask(tenant, "ListSessions", pb.ListSessionsRequest()).sessions
        assert {one.session_id for one in sessions} == alone.sessions
        totals = self.ask(tenant, "GetUsage", pb.GetUsageRequest()).totals
        assert sum(total.requests for total in totals) == alone.requests

    @rule(tenant=TENANT, session=SESSION)
    def update_session(self, tenant, session):
        value = json.dumps(f"{tenant} {len(self.alone[tenant].executions)}")
        self.ask(tenant, "UpdateSession", pb.UpdateSessionRequest(session_id=session, state_json={"k": value}))
        self.alone[tenant].values[session] = value

    @rule(tenant=TENANT, session=SESSION)
    def read_session(self, tenant, session):
        alone = self.alone[tenant]
        with self.found_only_if(session in alone.sessions):
            read = self.ask(tenant, "GetSession", pb.GetSessionRequest(session_id=session)).session
            assert read.message_count == 2 * alone.turns[session]
            assert dict(read.state_json).get("k") == alone.values.get(session)
            assert all(message.content.endswith((f"of {tenant}", "hello")) for message in read.messages)

    @rule(tenant=TENANT, session=SESSION)
    def delete_session(self, tenant, session):
        alone = self.alone[tenant]
        is_there = session in alone.sessions
        with self.found_only_if(is_there):
            self.ask(tenant, "DeleteSession", pb.DeleteSessionRequest(session_id=session))
        if is_there:
            alone.executions = {one for one in alone.executions if SESSION_OF[one] != session}
        alone.turns.pop(session, None)
        alone.values.pop(session, None)


TestTenants = Tenants.TestCase
TestTenants.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
