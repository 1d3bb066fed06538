"""The orchestrator with API keys: who is let in, what each may do, and whose data each sees."""

import asyncio
import os
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy.exc import OperationalError

from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import approval_pb2, audit_pb2, budget_pb2, execution_pb2, key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.calls.api_keys import ApiKey, StoredKey, hash_of, make_key
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.errors import (
    Conflict,
    ErrorCode,
    InvalidRequest,
    NotFound,
    PaganticError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from pagantic_common.rpc.access import gate
from pagantic_common.rpc.call import call_stream, call_unary
from services.orchestrator.adapters.operator_files import PromptFolder
from services.orchestrator.app.access import keys as app_keys
from services.orchestrator.servicer import SCOPES
from tests.support.orchestrator_app import orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

ADMIN = make_key(os.urandom)
ADMIN_STORED = StoredKey(DEFAULT_TENANT, ADMIN.key_id, "admin", frozenset(Scope), hash_of(ADMIN.secret), 0.0)
ALL = [number for number in key_pb2.KeyScope.values() if number not in (0, key_pb2.KEY_SCOPE_ADMIN)]


STREAMS = {"ExecuteStream", "FollowExecution"}


@asynccontextmanager
async def guarded(path, services=None):
    async with orchestrator(path, services, admin_keys=lambda: {ADMIN.key_id: ADMIN_STORED}) as stub:
        yield stub


async def ask(stub, method, request, key=ADMIN.text, timeout_s=10.0):
    credentials = key and f"Bearer {key}"
    if method in STREAMS:
        return await drained(
            call_stream("orchestrator", getattr(stub, method), request, timeout_s, credentials=credentials)
        )
    return await call_unary("orchestrator", getattr(stub, method), request, timeout_s, credentials=credentials)


async def key_of(stub, tenant, *, scopes=None, subject="ci", **fields):
    request = pb.CreateKeyRequest(tenant=tenant, subject=subject, scopes=ALL if scopes is None else scopes, **fields)
    return await ask(stub, "CreateKey", request)


async def refusal_of(stub, key, method="ListSessions"):
    with pytest.raises(PaganticError) as caught:
        await ask(stub, method, getattr(pb, f"{method}Request")(), key)
    return caught.value


async def drained(stream):
    return [event async for event in stream]


async def test_who_has_no_key_or_a_wrong_one_is_not_let_in_and_not_told_why(tmp_path):
    async with guarded(tmp_path) as stub:
        known = (await key_of(stub, "acme")).text
        _, key_id, secret, _ = known.split("_")
        wrong_secret = ApiKey(key_id, secret[::-1]).text
        unknown = make_key(os.urandom).text
        missing = await refusal_of(stub, "")
        assert (type(missing), missing.code) == (Unauthenticated, ErrorCode.AUTH_MISSING)
        told = {(type(error), error.code, str(error)) for error in [
            await refusal_of(stub, wrong) for wrong in (wrong_secret, unknown, "pag_x", known[:-1], known.upper())
        ]}  # fmt: skip
        assert len(told) == 1
        ((kind, code, _),) = told
        assert (kind, code) == (Unauthenticated, ErrorCode.AUTH_INVALID)
        assert await ask(stub, "ListSessions", pb.ListSessionsRequest(), known) == pb.ListSessionsResponse()


async def test_a_key_expires(tmp_path):
    async with guarded(tmp_path) as stub:
        request = pb.CreateKeyRequest(subject="ci", scopes=ALL)
        request.lifetime.FromMilliseconds(300)
        created = await ask(stub, "CreateKey", request)
        assert created.key.expires_at.ToMilliseconds() - created.key.created_at.ToMilliseconds() == 300
        await ask(stub, "ListSessions", pb.ListSessionsRequest(), created.text)
        await asyncio.sleep(0.35)
        error = await refusal_of(stub, created.text)
        assert (type(error), error.code) == (Unauthenticated, ErrorCode.AUTH_EXPIRED)


async def test_a_revoked_key_is_refused_and_both_of_two_are_valid_until_then(tmp_path, monkeypatch):
    monkeypatch.setattr(app_keys, "FRESH_S", 0.05)
    async with guarded(tmp_path) as stub:
        old, new = [await key_of(stub, "acme") for _ in range(2)]
        for key in (old, new):
            await ask(stub, "ListSessions", pb.ListSessionsRequest(), key.text)
        revoked = await ask(stub, "RevokeKey", pb.RevokeKeyRequest(key_id=old.key.key_id))
        again = await ask(stub, "RevokeKey", pb.RevokeKeyRequest(key_id=old.key.key_id))
        assert revoked.key.HasField("revoked_at")
        assert again == revoked, "the first time counts"
        assert (await refusal_of(stub, old.text)).code is ErrorCode.AUTH_INVALID
        await ask(stub, "ListSessions", pb.ListSessionsRequest(), new.text)
        with pytest.raises(NotFound):
            await ask(stub, "RevokeKey", pb.RevokeKeyRequest(key_id="unknown"))


async def test_a_key_that_is_revoked_while_a_stream_runs_ends_the_stream_and_its_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr(app_keys, "FRESH_S", 0.05)
    monkeypatch.setattr(gate, "RECHECK_S", 0.1)
    inference = ScriptedInference(None)
    async with guarded(tmp_path, scripted_services(inference=inference)) as stub:
        key = await key_of(stub, "acme")
        stream = call_stream(
            "orchestrator", stub.ExecuteStream, system_request(request_id="r"), 30, credentials=f"Bearer {key.text}"
        )
        await anext(stream)
        await inference.waiting.wait()
        await ask(stub, "RevokeKey", pb.RevokeKeyRequest(key_id=key.key.key_id))
        with pytest.raises(Unauthenticated) as caught:
            await drained(stream)
        assert caught.value.code is ErrorCode.AUTH_INVALID
        await asyncio.wait_for(inference.stopped.wait(), 60)


@pytest.mark.parametrize("method", sorted(SCOPES))
async def test_every_method_needs_its_scope_and_no_other_opens_it(tmp_path, method):
    numbers = {scope: key_pb2.KeyScope.Value(f"KEY_SCOPE_{scope.name}") for scope in Scope}
    async with guarded(tmp_path) as stub:
        others = [numbers[scope] for scope in Scope if scope is not SCOPES[method]]
        without = (await key_of(stub, "acme", scopes=others)).text
        with pytest.raises(PermissionDenied, match=f"needs the scope '{SCOPES[method].value}'") as caught:
            await ask(stub, method, REQUESTS[method](), without)
        assert caught.value.code is ErrorCode.AUTH_DENIED


# For each method that names something of a tenant's, the request that names the other's.
REQUESTS = {
    "Execute": system_request,
    "ExecuteStream": system_request,
    "CancelExecution": lambda: pb.CancelExecutionRequest(request_id="mine"),
    "ResumeExecution": lambda: pb.ResumeExecutionRequest(request_id="mine"),
    "ResolveApproval": lambda: pb.ResolveApprovalRequest(
        request_id="mine", tool_call_id="c1", decision=approval_pb2.APPROVAL_DECISION_APPROVED
    ),
    "ListApprovals": pb.ListApprovalsRequest,
    "SignalExecution": lambda: pb.SignalExecutionRequest(request_id="mine", name="paid"),
    "ListWaits": pb.ListWaitsRequest,
    "CreatePlan": lambda: pb.CreatePlanRequest(request=system_request(mode=execution_pb2.MODE_PLAN)),
    "FollowExecution": lambda: pb.FollowExecutionRequest(request_id="mine"),
    "UpdateExecution": lambda: pb.UpdateExecutionRequest(request_id="mine"),
    "DeleteExecution": lambda: pb.DeleteExecutionRequest(request_id="mine"),
    "GetExecution": lambda: pb.GetExecutionRequest(request_id="mine"),
    "ListExecutions": pb.ListExecutionsRequest,
    "GetTimeline": lambda: pb.GetTimelineRequest(request_id="mine"),
    "ListSteps": lambda: pb.ListStepsRequest(request_id="mine"),
    "GetSession": lambda: pb.GetSessionRequest(session_id="talk"),
    "ListSessions": pb.ListSessionsRequest,
    "UpdateSession": lambda: pb.UpdateSessionRequest(session_id="talk"),
    "DeleteSession": lambda: pb.DeleteSessionRequest(session_id="talk"),
    "GetUsage": pb.GetUsageRequest,
    "CreateKey": pb.CreateKeyRequest,
    "ListKeys": pb.ListKeysRequest,
    "RevokeKey": lambda: pb.RevokeKeyRequest(key_id="x"),
    "SetBudget": lambda: pb.SetBudgetRequest(period=budget_pb2.BUDGET_PERIOD_DAY),
    "GetBudget": pb.GetBudgetRequest,
    "ListBudgets": pb.ListBudgetsRequest,
    "ListAuditRecords": pb.ListAuditRecordsRequest,
    "ListTools": pb.ListToolsRequest,
    "ListModels": pb.ListModelsRequest,
    "ListReplicas": pb.ListReplicasRequest,
    "LoadModel": pb.LoadModelRequest,
    "UnloadModel": pb.UnloadModelRequest,
    "Embed": lambda: inference_service_pb2.EmbedRequest(texts=["hi"]),
    "Rerank": lambda: pb.RerankRequest(query="hi", texts=["hello"]),
    "CountTokens": lambda: inference_service_pb2.CountTokensRequest(texts=["hi"]),
    "ListPromptTemplates": pb.ListPromptTemplatesRequest,
    "RenderPromptTemplate": lambda: pb.RenderPromptTemplateRequest(session_id="talk"),
}
NAMES_NOTHING = {
    *("Execute", "ExecuteStream", "CreatePlan", "CreateKey", "ListKeys", "RevokeKey"),
    *("SetBudget", "GetBudget", "ListBudgets", "ListAuditRecords", "ListApprovals", "ListWaits", "ListPromptTemplates"),
    "ListTools",
    *("ListModels", "Embed", "Rerank", "CountTokens", "ListReplicas", "LoadModel", "UnloadModel"),
    "RenderPromptTemplate",  # has a test of its own: it tells of a session by its values alone
}
LISTS = {"ListExecutions": "executions", "ListSessions": "sessions", "GetUsage": "totals"}


def test_every_method_of_the_contract_is_tried():
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["OrchestratorService"].methods}
    assert methods == REQUESTS.keys() == SCOPES.keys()


@pytest.mark.parametrize("method", sorted(REQUESTS.keys() - NAMES_NOTHING))
async def test_what_is_another_tenants_is_not_there(tmp_path, method):
    async with guarded(tmp_path) as stub:
        mine, others = [(await key_of(stub, tenant)).text for tenant in ("acme", "beta")]
        request = system_request(request_id="mine", session_id="talk")
        assert (await ask(stub, "Execute", request, mine)).content == "hello"
        if method in LISTS:
            assert list(getattr(await ask(stub, method, REQUESTS[method](), mine), LISTS[method]))
            assert not list(getattr(await ask(stub, method, REQUESTS[method](), others), LISTS[method]))
        elif method == "UpdateSession":  # it makes the caller's own
            changed = await ask(stub, method, REQUESTS[method](), others)
            assert changed.session.message_count == 0
            kept = await ask(stub, "GetSession", pb.GetSessionRequest(session_id="talk"), mine)
            assert kept.session.message_count == 2
        else:
            with pytest.raises(NotFound) as caught:
                await ask(stub, method, REQUESTS[method](), others)
            with pytest.raises(NotFound) as unknown:
                await ask(stub, method, REQUESTS[method](), (await key_of(stub, "third")).text)
            assert str(caught.value) == str(unknown.value)
        assert (await ask(stub, "GetExecution", pb.GetExecutionRequest(request_id="mine"), mine)).execution.response


async def test_a_template_reads_no_values_of_another_tenants_session(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    folder.joinpath("host.txt").write_text("Greet {{ session.name }}.")
    template = execution_pb2.PromptTemplate(name="host")
    request = pb.RenderPromptTemplateRequest(template=template, session_id="talk")
    async with guarded(tmp_path, scripted_services(prompts=PromptFolder(folder))) as stub:
        mine, others = [(await key_of(stub, tenant)).text for tenant in ("acme", "beta")]
        values = pb.UpdateSessionRequest(session_id="talk", state_json={"name": '"Ana"'})
        await ask(stub, "UpdateSession", values, mine)
        assert (await ask(stub, "RenderPromptTemplate", request, mine)).text == "Greet Ana."
        with pytest.raises(InvalidRequest, match="has no value 'name'"):
            await ask(stub, "RenderPromptTemplate", request, others)


async def test_two_tenants_may_use_one_request_id_and_one_session(tmp_path):
    async with guarded(tmp_path, scripted_services(inference=ScriptedInference(*map(answer, "abcd")))) as stub:
        keys = [(await key_of(stub, tenant)).text for tenant in ("acme", "beta")]
        said = [
            (await ask(stub, "Execute", system_request(text, request_id="r", session_id="s"), key)).content
            for key, text in zip(keys, ("one", "two"), strict=True)
        ]
        assert said == ["a", "b"]
        for key, text in zip(keys, ("one", "two"), strict=True):
            session = (await ask(stub, "GetSession", pb.GetSessionRequest(session_id="s"), key)).session
            assert session.messages[0].content == text
            assert session.message_count == 2


async def test_an_answer_is_given_again_to_the_same_subject_alone(tmp_path):
    async with guarded(tmp_path, scripted_services(inference=ScriptedInference(answer("a")))) as stub:
        first, replacement, other = [(await key_of(stub, "acme", subject=name)).text for name in ("ci", "ci", "web")]
        request = system_request(request_id="r")
        assert (await ask(stub, "Execute", request, first)).content == "a"
        assert (await ask(stub, "Execute", request, replacement)).content == "a"
        with pytest.raises(Conflict, match="by another caller"):
            await ask(stub, "Execute", request, other)


async def test_usage_and_budgets_know_the_callers_of_a_tenant(tmp_path):
    async with guarded(tmp_path, scripted_services(inference=ScriptedInference(*map(answer, "abc")))) as stub:
        ci, web = [(await key_of(stub, "acme", subject=name)).text for name in ("ci", "web")]
        period = budget_pb2.BUDGET_PERIOD_DAY
        for subject in ("", "ci"):
            await ask(
                stub, "SetBudget", pb.SetBudgetRequest(tenant="acme", subject=subject, period=period, max_tokens=10**6)
            )
        for key, count in ((ci, 2), (web, 1)):
            for number in range(count):
                await ask(stub, "Execute", system_request(request_id=f"{key[-4:]}{number}"), key)
        totals = (await ask(stub, "GetUsage", pb.GetUsageRequest(), ci)).totals
        assert [(one.subject, one.requests) for one in totals] == [("ci", 2), ("web", 1)]
        only = (await ask(stub, "GetUsage", pb.GetUsageRequest(subject="web"), ci)).totals
        assert [one.subject for one in only] == ["web"]
        await stub.budgets.stop()
        own, others = [await ask(stub, "GetBudget", pb.GetBudgetRequest(), key) for key in (ci, web)]
        assert own.caller_budget.granted_tokens == sum(one.prompt_tokens + one.output_tokens for one in totals[:1])
        assert own.budget.granted_tokens == sum(one.prompt_tokens + one.output_tokens for one in totals)
        assert others.budget == own.budget
        assert not others.HasField("caller_budget")


async def test_keys_are_listed_page_by_page_without_their_secrets(tmp_path):
    async with guarded(tmp_path) as stub:
        made = [await key_of(stub, tenant) for tenant in ("acme", "beta", "acme")]
        first = await ask(stub, "ListKeys", pb.ListKeysRequest(page_size=2))
        rest = await ask(stub, "ListKeys", pb.ListKeysRequest(page_size=2, page_token=first.next_page_token))
        assert [key.key_id for key in [*first.keys, *rest.keys]] == [one.key.key_id for one in made]
        assert not rest.next_page_token
        only = await ask(stub, "ListKeys", pb.ListKeysRequest(tenant="beta"))
        assert [key.tenant for key in only.keys] == ["beta"]
        for one in made:
            assert one.text.split("_")[2].encode() not in first.SerializeToString() + rest.SerializeToString()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subject": "ci", "scopes": []}, "scopes is empty"),
        ({"subject": "ci", "scopes": [0]}, "unspecified"),
        ({"subject": "ci", "scopes": [99]}, "not known"),
        ({"subject": "", "scopes": [1]}, "subject"),
        ({"subject": "ci", "scopes": [1], "tenant": "a b"}, "tenant"),
    ],
)
async def test_a_key_that_cannot_be_made_is_refused(tmp_path, fields, message):
    async with guarded(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match=message):
            await ask(stub, "CreateKey", pb.CreateKeyRequest(**fields))


async def test_a_known_key_holds_for_a_while_when_the_journal_cannot_be_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(app_keys, "FRESH_S", 0.0)
    async with guarded(tmp_path) as stub:
        key = (await key_of(stub, "acme")).text
        await ask(stub, "ListKeys", pb.ListKeysRequest(), ADMIN.text)
        with pytest.raises(PermissionDenied):
            await ask(stub, "ListKeys", pb.ListKeysRequest(), key)

        async def away(_key_id):
            raise Unavailable("the journal is away")

        monkeypatch.setattr(stub.journal, "find_key", away)
        with pytest.raises(PermissionDenied):  # still known
            await ask(stub, "ListKeys", pb.ListKeysRequest(), key)
        assert (await refusal_of(stub, make_key(os.urandom).text)).failure.message == "the journal is away"


# ---- audit

SECRET = "the secret of the sea"  # noqa: S105 - what a request says
RECORDED = {
    "Execute": lambda: system_request(SECRET, request_id="r", session_id="s"),
    "ExecuteStream": lambda: system_request(SECRET, request_id="r", session_id="s"),
    "CreateKey": lambda: pb.CreateKeyRequest(tenant="acme", subject="ci", scopes=ALL),
    "SetBudget": lambda: pb.SetBudgetRequest(tenant="acme", period=budget_pb2.BUDGET_PERIOD_DAY, max_tokens=5),
}
READS = {method for method, scope in SCOPES.items() if scope in (Scope.READ, Scope.USAGE)} | {
    *("ListTools", "ListModels", "Embed", "Rerank", "CountTokens"),
    "ListReplicas",  # has nothing of a tenant, and pages that stay open ask for it every few seconds
}


async def audit_of(stub, tenant=""):
    await stub.journal._commit(lambda _db: None)
    page = await ask(stub, "ListAuditRecords", pb.ListAuditRecordsRequest(tenant=tenant, page_size=500))
    return list(page.records)


@pytest.mark.parametrize("method", sorted(REQUESTS))
async def test_the_audit_says_who_asked_for_what_and_nothing_of_what_was_said(tmp_path, method):
    async with guarded(tmp_path) as stub:
        await ask(stub, "Execute", system_request(request_id="mine", session_id="talk"))
        before = len(await audit_of(stub))
        request = RECORDED.get(method, REQUESTS[method])()
        with suppress(PaganticError):
            await ask(stub, method, request)
        found = (await audit_of(stub))[before:]
        assert not any(SECRET.encode() in record.SerializeToString() for record in found)
        own = [record for record in found if record.method == f"OrchestratorService/{method}"]
        if method in READS:
            assert own == []
        elif method == "ListAuditRecords":
            assert own
        else:
            (record,) = own
            assert (record.tenant, record.subject, record.kind) == (DEFAULT_TENANT, "admin", "api_key")
            assert record.decision == audit_pb2.AUDIT_DECISION_ALLOWED
            if method in ("Execute", "ExecuteStream"):
                assert (record.request_id, record.resource) == ("r", "session s")


async def test_denials_are_recorded_and_equal_ones_once(tmp_path):
    async with guarded(tmp_path) as stub:
        poor = (await key_of(stub, "acme", scopes=[key_pb2.KEY_SCOPE_USAGE])).text
        for _ in range(3):
            await refusal_of(stub, "")
            await refusal_of(stub, "pag_wrong")
            await refusal_of(stub, poor)
        denied = [one for one in await audit_of(stub) if one.decision == audit_pb2.AUDIT_DECISION_DENIED]
        assert [(one.tenant, one.subject, one.code) for one in denied] == [
            ("", "", "AUTH_MISSING"),
            ("", "", "AUTH_INVALID"),
            ("acme", "ci", "AUTH_DENIED"),
        ]
        assert {one.method for one in denied} == {"OrchestratorService/ListSessions"}


@pytest.mark.parametrize("method", ["CreateKey", "DeleteSession", "ListKeys"])
async def test_what_cannot_be_recorded_is_not_done(tmp_path, method, monkeypatch):
    async with guarded(tmp_path) as stub:
        await ask(stub, "Execute", system_request(request_id="mine", session_id="talk"))
        request = RECORDED.get(method, REQUESTS[method])()

        def away(_db, _entry):
            raise OperationalError("INSERT", {}, Exception("disk is full"))

        monkeypatch.setattr(stub.journal, "_append", away)
        with pytest.raises(Unavailable):
            await ask(stub, method, request)
        monkeypatch.undo()
        assert len((await ask(stub, "ListKeys", pb.ListKeysRequest())).keys) == 0
        assert (await ask(stub, "GetSession", pb.GetSessionRequest(session_id="talk"))).session


@pytest.mark.parametrize("field", ["request_id", "session_id"])
async def test_an_id_that_is_none_is_refused_before_it_is_recorded(tmp_path, field):
    async with guarded(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match=field):
            await ask(stub, "Execute", system_request(**{field: f"{SECRET}\0" * 1000}))
        assert [one.method for one in await audit_of(stub)] == ["OrchestratorService/ListAuditRecords"]
