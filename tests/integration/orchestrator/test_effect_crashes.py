"""A crash at every commit of an execution, and before and after its effect: none happens twice, none is lost silently.

The journal and the ledger of the effects are copied at each of these moments. Then an orchestrator continues each copy.
"""

import itertools

import pytest

from pagantic.common.v1 import error_pb2
from pagantic_common.domain.messages import Ending, LostCall, Role, ToolCall, ToolSafety
from services.orchestrator.adapters.journal.group_commit import GroupCommit
from tests.integration.orchestrator.test_plans import TOOL, plan, step
from tests.support.orchestrator_app import execute, leave, orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services

CALL = ToolCall("c1", "clock", '{"euros": 3}')
UNKNOWN = error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN
REQUESTS = {
    "chat": system_request(request_id="p", tools=["clock"]),
    "tool step": plan(TOOL),
    "child": plan(step("ask", parameters={"prompt": "Pay.", "tools": ["clock"]})),
}


class Paying(ScriptedTools):
    """Has an effect in a ledger: the id of the effect is added to it."""

    def __init__(self, kind, ledger, crash=lambda: None):
        super().__init__(is_idempotent=kind == "idempotent", safety=ToolSafety.EXTERNAL)
        self.kind, self.ledger, self.crash = kind, ledger, crash

    async def execute(self, call, report):
        self.crash()
        record = await super().execute(call, report)
        effect_id = self.effect_ids[-1]
        if self.kind != "idempotent" or effect_id not in self.ledger:
            self.ledger.append(effect_id)
        self.crash()
        return record

    async def find_outcome(self, tool, effect_id):
        if self.kind != "knowing":
            return LostCall(Ending.UNKNOWN)
        return LostCall(Ending.DONE, "noon") if effect_id in self.ledger else LostCall(Ending.NOT_RUN)


class Asking(ScriptedInference):
    """Asks for the call until the prompt has its result."""

    async def infer(self, command, hints):
        has_result = any(message.role is Role.TOOL for message in command.messages)
        self.outputs = [answer("well")] if has_result or not command.tools else [answer("", calls=[CALL])]
        async for part in super().infer(command, hints):
            yield part


async def crashed_copies(path, kind, request, monkeypatch):
    """Run a request, and return copies of its journal and of its ledger at each moment at which it could crash."""
    copies, ledger, names = [], [], itertools.count()

    def crash():
        left = path / f"left-{next(names)}"
        leave(path, left)
        copies.append((left, list(ledger)))

    end_all = GroupCommit._end_all

    def end_and_crash(self, group, results):
        end_all(self, group, results)
        crash()

    services = scripted_services(Asking(), tools=Paying(kind, ledger, crash))
    with monkeypatch.context() as patch:
        patch.setattr(GroupCommit, "_end_all", end_and_crash)
        async with orchestrator(path, services) as stub:
            await execute(stub, request)
    return copies


@pytest.mark.parametrize("kind", ["idempotent", "knowing", "plain"])
@pytest.mark.parametrize("work", REQUESTS)
async def test_no_effect_happens_twice_and_none_is_lost_silently(tmp_path, monkeypatch, kind, work):
    request, unknown_count = REQUESTS[work], 0
    copies = await crashed_copies(tmp_path, kind, request, monkeypatch)
    assert len(copies) >= 5
    for folder, ledger in copies:
        async with orchestrator(folder, scripted_services(Asking(), tools=Paying(kind, ledger))) as stub:
            response = await execute(stub, request)
        (call,) = response.tool_calls_made
        assert len(ledger) <= 1, "an effect happened twice"
        if kind != "plain":
            assert (len(ledger), call.is_error, call.result) == (1, False, "noon")
        elif call.is_error:
            assert call.error_code == UNKNOWN
            unknown_count += 1
        else:
            assert len(ledger) == 1, "an effect was lost silently"
    assert (unknown_count > 0) == (kind == "plain")
