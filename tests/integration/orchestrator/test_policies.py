"""Cedar policies: what tenants may use, through the orchestrator."""

import os
import time
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PermissionDenied
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.access import watched_file
from services.orchestrator.adapters.access.cedar_policy import CedarPolicy
from services.orchestrator.app.policy.permit import Permit
from services.orchestrator.app.services import CallTool, ListTools
from services.orchestrator.ports.policy import Action, Collection, Model, Tool
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedContext, ScriptedTools, scripted_services

POLICIES = """
@id("everybody") permit(principal, action == Action::"infer", resource);
@id("harmless") permit(principal, action == Action::"call", resource) when { resource.safety == "none" };
@id("no large") forbid(principal == Tenant::"acme", action == Action::"infer", resource == Model::"large");
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "policies.cedar"
    path.write_text(POLICIES)
    return path


@pytest.mark.parametrize(
    ("tenant", "action", "resource", "denial"),
    [
        ("acme", Action.INFER, Model("small"), ""),
        ("beta", Action.INFER, Model("large"), ""),
        (
            "acme",
            Action.INFER,
            Model("large"),
            "tenant 'acme' may not infer with model 'large': forbidden by 'no large'",
        ),
        ("acme", Action.CALL, Tool("calculator", "none"), ""),
        (
            "acme",
            Action.CALL,
            Tool("shell", "dangerous"),
            "tenant 'acme' may not call tool 'shell': no policy permits it",
        ),
        (
            "beta",
            Action.RETRIEVE,
            Collection("docs"),
            "tenant 'beta' may not retrieve from collection 'docs': no policy permits it",
        ),
        ("beta", Action.CHANGE, Collection('a"b\n'), "no policy permits it"),
    ],
)
def test_what_no_policy_permits_is_denied_and_says_why(file, tenant, action, resource, denial):
    policy = CedarPolicy(file)
    for _ in range(2):  # the second one is remembered
        found = policy.find_denial(tenant, action, resource)
        assert found == denial or (denial and found.endswith(denial))


def test_a_changed_file_holds_and_one_that_is_wrong_changes_nothing(file, monkeypatch):
    monkeypatch.setattr(watched_file, "LOOK_S", 0.0)
    policy = CedarPolicy(file)
    assert policy.find_denial("acme", Action.INFER, Model("large"))
    file.write_text("permit(principal, action, resource);")
    assert not policy.find_denial("acme", Action.INFER, Model("large"))
    file.write_text("permit(principal, action, resource) when { resource.size > 1 };")
    os.utime(file, ns=(time.time_ns(), time.time_ns()))
    assert not policy.find_denial("acme", Action.INFER, Model("large"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("permit(principal, action, resource)", "cannot be parsed|not valid"),
        ('permit(principal == User::"a", action, resource);', "not valid"),
        ('permit(principal, action == Action::"delete", resource);', "not valid"),
        ("permit(principal, action, resource) when { resource.size > 1 };", "not valid"),
    ],
)
def test_a_policy_that_cannot_hold_is_refused_at_load(tmp_path, text, said):
    path = tmp_path / "policies.cedar"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=said) as refused:
        CedarPolicy(path)
    assert str(refused.value).startswith("POLICY_FILE ")


def governed(text, path, **services):
    file = path / "policies.cedar"
    file.write_text(text)
    return replace(scripted_services(**services), around=(Permit(CedarPolicy(file)),))


async def code_of(path, text, request):
    async with orchestrator(path, governed(text, path)) as stub:
        response = await execute(stub, request)
        return error_pb2.ErrorCode.Name(response.error.code) if response.HasField("error") else "", response


INFERS = 'permit(principal, action == Action::"infer", resource);'


async def test_a_request_for_what_is_permitted_succeeds(tmp_path):
    assert (await code_of(tmp_path, INFERS, system_request()))[0] == ""


async def test_a_denied_model_fails_the_request_with_the_name_of_the_policy(tmp_path):
    forbidden = INFERS + '@id("none here") forbid(principal, action, resource == Model::"large");'
    hints = execution_pb2.ExecutionHints(model="large")
    code, response = await code_of(tmp_path, forbidden, system_request(hints=hints))
    assert code == "ERROR_CODE_AUTH_POLICY"
    assert "forbidden by 'none here'" in response.error.message
    assert not response.error.retryable


@pytest.mark.parametrize(
    "asked",
    [
        {"query_expansion": policy_pb2.QueryExpansion(queries=1, model="large")},
        {"answerability": policy_pb2.Answerability(model="large")},
    ],
)
async def test_a_denied_model_is_not_asked_about_the_context_either(tmp_path, asked):
    rules = 'permit(principal, action, resource); forbid(principal, action, resource == Model::"large");'
    context = policy_pb2.ContextPolicy(collection="docs", **asked)
    services = governed(rules, tmp_path, context=ScriptedContext(Chunk("1", "red", "s", 1.0, "bm25")))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(context=context))
    assert response.error.code == error_pb2.ERROR_CODE_AUTH_POLICY


async def test_a_denied_collection_fails_the_request(tmp_path):
    context = policy_pb2.ContextPolicy(collection="docs")
    assert (await code_of(tmp_path, INFERS, system_request(context=context)))[0] == "ERROR_CODE_AUTH_POLICY"


async def test_a_denied_tool_fails_the_request_that_names_it(tmp_path):
    code, response = await code_of(tmp_path, INFERS, system_request(tools=["clock"]))
    assert code == "ERROR_CODE_TOOL_DENIED"
    assert "no policy permits it" in response.error.message


async def test_a_denied_tool_is_not_called_though_a_plan_wants_it(tmp_path):
    tools = ScriptedTools()
    services = governed(INFERS, tmp_path, tools=tools)
    with pytest.raises(PermissionDenied) as denied:
        await services.do(CallTool(ToolCall("1", "clock", "{}")))
    assert denied.value.code is ErrorCode.TOOL_DENIED
    assert not tools.calls
    assert await services.do(ListTools()) == [], "what may not be called is not offered"
