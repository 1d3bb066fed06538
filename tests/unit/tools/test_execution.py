from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pagantic_common.domain.calls.breaker import THRESHOLD
from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode
from pagantic_common.domain.messages import Ending, LostCall, ToolCall, ToolDefinition, ToolFailed, ToolSafety
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.scope import effect_scope, work_scope
from pagantic_common.tools import ToolContext, ToolHook, ToolNotRun
from pagantic_common.tools import tool as tool_of
from pagantic_common.workers.fair_places import FairPlaces, keep_place_until
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.tools.adapters.builtin.computing import computing_tools
from services.tools.adapters.function_tool import FunctionToolAdapter, Machine
from services.tools.app import execution
from services.tools.app.execution import ExecutionLimits, ToolExecutor
from services.tools.app.registry import ToolRegistry
from services.tools.ports import ToolUnavailable, make_places


class ScriptedTool:
    """Does what its script says, one entry for each run: a result, an exception, or seconds to take."""

    def __init__(self, *script, idempotent=False, timeout_s=None, unavailable_reason="", places=None, is_remote=False):
        self.definition = ToolDefinition(
            "scripted", "", '{"type": "object"}', idempotent=idempotent, timeout_s=timeout_s
        )
        self.unavailable_reason = unavailable_reason
        self.places = places
        self.is_remote = is_remote
        self.script = list(script)
        self.runs = 0

    async def run(self, _arguments, _report):
        self.runs += 1
        entry = self.script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        if isinstance(entry, float):
            await asyncio.sleep(entry)
            return "late"
        return entry


def executor_of(tools, clock, **limits):
    return ToolExecutor(ToolRegistry(tools), clock, ExecutionLimits(**{"backoff_s": 0.0, **limits}))


async def execute(tool, arguments_json="{}", timeout_s=None, executor=None, tenant=None, **limits):
    clock = SystemClock()
    executor = executor or executor_of([tool], clock, **limits)
    call = ToolCall("c1", tool.definition.name, arguments_json)
    with work_scope(principal=tenant and work_of(tenant)):
        return await executor.execute(call, Deadline.after(clock.monotonic_s(), timeout_s))


async def test_result_is_given_for_its_call():
    outcome = await execute(ScriptedTool("42"))
    assert (outcome.result.call_id, outcome.result.name, outcome.result.content) == ("c1", "scripted", "42")
    assert not outcome.result.is_error
    assert outcome.failure is None
    assert outcome.attempts == 1


async def test_bad_arguments_run_nothing():
    tool = ScriptedTool("42")
    outcome = await execute(tool, "[]")
    assert outcome.failure.code is ErrorCode.TOOL_INVALID_ARGUMENTS
    assert outcome.result.is_error
    assert (tool.runs, outcome.attempts) == (0, 0)


async def test_unavailable_tool_is_not_run():
    tool = ScriptedTool("42", unavailable_reason="no network")
    outcome = await execute(tool)
    assert outcome.failure.code is ErrorCode.TOOL_UNAVAILABLE
    assert "no network" in outcome.result.content
    assert tool.runs == 0


async def test_idempotent_tool_is_retried_until_it_succeeds():
    outcome = await execute(ScriptedTool(OSError(), OSError(), "ok", idempotent=True))
    assert (outcome.result.content, outcome.attempts) == ("ok", 3)


async def test_idempotent_tool_gives_up_after_its_retries():
    outcome = await execute(ScriptedTool(*[OSError()] * 9, idempotent=True), max_retries=2)
    assert outcome.failure.code is ErrorCode.TOOL_EXECUTION_FAILED
    assert outcome.failure.retryable
    assert outcome.attempts == 3


async def test_other_tool_is_not_retried():
    outcome = await execute(ScriptedTool(OSError(), "ok"))
    assert outcome.attempts == 1
    assert not outcome.failure.retryable


async def test_final_failure_is_not_retried():
    outcome = await execute(ScriptedTool(ToolFailed("never"), "ok", idempotent=True))
    assert (outcome.attempts, outcome.failure.retryable) == (1, False)


async def test_passing_failure_is_retried():
    outcome = await execute(ScriptedTool(ToolFailed("busy", is_final=False), "ok", idempotent=True))
    assert (outcome.attempts, outcome.result.content) == (2, "ok")


async def test_exception_leaks_nothing():
    outcome = await execute(ScriptedTool(ValueError("password 1234")))
    assert "1234" not in outcome.failure.message + outcome.result.content
    assert "internal error" in outcome.result.content


async def test_slow_tool_ends_at_its_own_timeout_and_is_retried():
    outcome = await execute(ScriptedTool(5.0, "ok", idempotent=True, timeout_s=0.01), timeout_s=5)
    assert (outcome.attempts, outcome.result.content) == (2, "ok")


async def test_slow_tool_ends_at_the_default_timeout():
    outcome = await execute(ScriptedTool(5.0), default_timeout_s=0.01)
    assert outcome.failure.code is ErrorCode.TOOL_TIMEOUT
    assert "within 0.01 s" in outcome.failure.message


async def test_no_retry_goes_past_the_callers_timeout():
    outcome = await execute(ScriptedTool(5.0, 5.0, 5.0, idempotent=True), timeout_s=0.02)
    assert outcome.failure.code is ErrorCode.TOOL_TIMEOUT
    assert outcome.attempts == 1
    assert outcome.duration_s < 1


async def test_timeout_that_the_tool_raises_itself_is_its_own_failure():
    outcome = await execute(ScriptedTool(TimeoutError()))
    assert outcome.failure.code is ErrorCode.TOOL_EXECUTION_FAILED


class GatedTool(ScriptedTool):
    """Runs until its gate opens, and counts the concurrent runs and the most of them."""

    def __init__(self, places, **options):
        super().__init__(places=places, **options)
        self.gate = asyncio.Event()
        self.running = self.most = 0

    async def run(self, _arguments, _report):
        self.runs += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            return "done"
        finally:
            self.running -= 1


async def start(count, tool, executor, tenant=None, **options):
    """Start calls, and let them come as far as they can."""
    calls = [asyncio.create_task(execute(tool, executor=executor, tenant=tenant, **options)) for _ in range(count)]
    for _ in range(20):
        await asyncio.sleep(0)
    return calls


async def test_waiting_for_a_place_is_no_time_of_the_tool():
    tool = ScriptedTool(0.2, 0.2, 0.2, timeout_s=0.3, places=make_places(1, 1))
    executor = executor_of([tool], SystemClock())
    outcomes = await asyncio.gather(*(execute(tool, executor=executor) for _ in range(3)))
    assert [outcome.result.content for outcome in outcomes] == ["late"] * 3
    assert max(outcome.duration_s for outcome in outcomes) > 0.5


async def test_a_call_without_a_place_ends_with_its_callers_time_and_is_no_silence():
    tool = GatedTool(make_places(1, 1), is_remote=True, timeout_s=60)
    executor = executor_of([tool], SystemClock())
    (holder,) = await start(1, tool, executor)
    for _ in range(2 * THRESHOLD):
        outcome = await execute(tool, executor=executor, timeout_s=0.01)
        assert (outcome.failure.code, outcome.attempts) == (ErrorCode.TOOL_TIMEOUT, 0)
        assert "was not run: no place was free within 0.0" in outcome.failure.message
        assert outcome.failure.retryable, "it has had no effects"
    tool.gate.set()
    assert (await holder).failure is None
    assert (await execute(tool, executor=executor)).failure is None
    assert tool.runs == 2


async def test_a_call_that_a_full_queue_refuses_is_told():
    tool = GatedTool(FairPlaces(1, waiting=1, resource="a place of the tool"))
    executor = executor_of([tool], SystemClock())
    calls = await start(2, tool, executor)
    outcome = await execute(tool, executor=executor)
    assert (outcome.failure.code, outcome.attempts) == (ErrorCode.TOOL_UNAVAILABLE, 0)
    assert "1 requests wait for a place of the tool already" in outcome.failure.message
    tool.gate.set()
    await asyncio.wait(calls)


async def test_a_tenant_that_fills_its_places_leaves_one_to_others():
    tool = GatedTool(make_places(3, 2))
    executor = executor_of([tool], SystemClock())
    calls = await start(5, tool, executor, "acme")
    assert tool.running == 2
    calls += await start(1, tool, executor, "beta")
    assert tool.running == 3
    tool.gate.set()
    assert all(outcome.failure is None for outcome in await asyncio.gather(*calls))
    assert tool.most == 3


async def test_the_only_user_of_a_local_system_takes_all_places():
    tool = GatedTool(make_places(3, 2))
    calls = await start(5, tool, executor_of([tool], SystemClock()))
    assert tool.running == 3
    tool.gate.set()
    await asyncio.wait(calls)


async def test_work_that_is_left_behind_keeps_its_place():
    ends = asyncio.get_running_loop().create_future()

    class LeavingTool(ScriptedTool):
        async def run(self, _arguments, _report):
            keep_place_until(ends)
            return await asyncio.shield(ends)

    tool = LeavingTool(places=make_places(1, 1), timeout_s=0.01)
    executor = executor_of([tool], SystemClock())
    assert (await execute(tool, executor=executor)).failure.code is ErrorCode.TOOL_TIMEOUT
    assert "no place was free" in (await execute(tool, executor=executor, timeout_s=0.01)).failure.message
    ends.set_result("done")
    assert (await execute(tool, executor=executor, timeout_s=5)).result.content == "done"


def refused(outcome):
    return outcome.failure is not None and "consecutive calls got no answer" in outcome.failure.message


async def test_a_tenant_opens_no_breaker_of_another():
    silent = [ToolUnavailable("away")] * THRESHOLD
    tool = ScriptedTool(*silent, "for beta", is_remote=True)
    executor = executor_of([tool], FrozenClock())
    for _ in range(THRESHOLD):
        assert not refused(await execute(tool, executor=executor, tenant="acme"))
    assert refused(await execute(tool, executor=executor, tenant="acme"))
    assert (await execute(tool, executor=executor, tenant="beta")).result.content == "for beta"


async def test_a_local_tool_has_no_breaker():
    tool = ScriptedTool(*[5.0] * 2 * THRESHOLD, "done", timeout_s=0.001)
    executor = executor_of([tool], SystemClock())
    for _ in range(2 * THRESHOLD):
        assert (await execute(tool, executor=executor)).failure.code is ErrorCode.TOOL_TIMEOUT
    assert (await execute(tool, executor=executor, timeout_s=5)).result.content == "done"


async def test_breakers_are_bounded_in_number(monkeypatch):
    monkeypatch.setattr(execution, "MAX_BREAKERS", 2)
    tool = ScriptedTool(*[ToolUnavailable("away")] * 3 * THRESHOLD, "again", is_remote=True)
    executor = executor_of([tool], FrozenClock())
    for tenant in ("a", "b", "c"):
        for _ in range(THRESHOLD):
            await execute(tool, executor=executor, tenant=tenant)
    assert [refused(await execute(tool, executor=executor, tenant=tenant)) for tenant in ("c", "b")] == [True, True]
    assert (await execute(tool, executor=executor, tenant="a")).result.content == "again"


async def test_cancelling_the_caller_cancels_the_tool():
    task = asyncio.create_task(execute(ScriptedTool(5.0, idempotent=True)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_large_result_is_refused_with_size_and_limit():
    outcome = await execute(ScriptedTool("é" * 200, "x", idempotent=True), max_result_bytes=300)
    assert outcome.failure.code is ErrorCode.TOOL_EXECUTION_FAILED
    assert "400 bytes, at most 300" in outcome.failure.message
    assert outcome.attempts == 1


async def test_result_that_is_not_unicode_is_made_so():
    assert (await execute(ScriptedTool("a\ud800b"))).result.content == "a?b"


class FrozenClock:
    """Always 2024-02-29 23:30:00 UTC."""

    def now(self):
        return datetime(2024, 2, 29, 23, 30, tzinfo=UTC)

    def monotonic_s(self):
        return 1.0


@pytest.mark.parametrize(
    ("tool", "arguments_json", "content"),
    [
        ("calculator", '{"expression": "6 / 4"}', "1.5"),
        ("clock", "{}", '{"time":"2024-02-29T23:30:00+00:00","weekday":"Thursday","timezone":"UTC"}'),
        (
            "clock",
            '{"timezone": "Europe/Berlin"}',
            '{"time":"2024-03-01T00:30:00+01:00","weekday":"Friday","timezone":"Europe/Berlin"}',
        ),
        ("json_query", '{"document": "{\\"a\\": [1, 2]}", "query": "a[1]"}', "2"),
    ],
)
async def test_builtin_tool_answers(tool, arguments_json, content):
    executor = executor_of(computing_tools(FrozenClock(), ThreadWorkers()), FrozenClock())
    outcome = await executor.execute(ToolCall("c1", tool, arguments_json), Deadline())
    assert outcome.result.content == content


@pytest.mark.parametrize("timezone", ["../etc/passwd", "/etc/passwd", "UTC, 24hr"])
async def test_what_cannot_be_a_time_zone_is_no_argument(timezone):
    executor = executor_of(computing_tools(FrozenClock(), ThreadWorkers()), FrozenClock())
    outcome = await executor.execute(ToolCall("c1", "clock", f'{{"timezone": "{timezone}"}}'), Deadline())
    assert outcome.failure.code is ErrorCode.TOOL_INVALID_ARGUMENTS


@pytest.mark.parametrize("expression", ["(2 + 3) * 4", "-1", "5", "sqrt(min(9, 16)) ** 2", "2 * pi", "round(7 / 3, 2)"])
async def test_every_kind_of_expression_is_within_the_parameter_schema(expression):
    executor = executor_of(computing_tools(FrozenClock(), ThreadWorkers()), FrozenClock())
    outcome = await executor.execute(ToolCall("c1", "calculator", json.dumps({"expression": expression})), Deadline())
    assert outcome.failure is None


@pytest.mark.parametrize("timezone", ["Mars/Olympus", "Europe"])
async def test_unknown_time_zone_is_told(timezone):
    executor = executor_of(computing_tools(FrozenClock(), ThreadWorkers()), FrozenClock())
    outcome = await executor.execute(ToolCall("c1", "clock", f'{{"timezone": "{timezone}"}}'), Deadline())
    assert outcome.failure.code is ErrorCode.TOOL_EXECUTION_FAILED
    assert f"time zone '{timezone}' is not known" in outcome.result.content


class KnowingTool(ScriptedTool):
    """Knows what became of its calls: a result, or an exception."""

    def __init__(self, *script, outcome, safety=ToolSafety.WRITE, **fields):
        super().__init__(*script, **fields)
        self.definition = replace(self.definition, safety=safety)
        self.ending = outcome
        self.asked = []

    async def outcome(self, effect_id):
        self.asked.append(effect_id)
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending


LOST = [60.0, ToolUnavailable("its server left", may_have_run=True)]


@pytest.mark.parametrize("lost", LOST, ids=["too late", "lost"])
@pytest.mark.parametrize(
    ("outcome", "code", "content", "runs"),
    [
        ("paid", None, "paid", 1),
        (ToolNotRun(), None, "again", 2),
        (LookupError(), ErrorCode.TOOL_OUTCOME_UNKNOWN, "it may have happened", 1),
        (OSError("no answer"), ErrorCode.TOOL_OUTCOME_UNKNOWN, "it may have happened", 1),
    ],
)
async def test_a_tool_with_effects_is_asked_about_a_call_that_was_lost(lost, outcome, code, content, runs):
    tool = KnowingTool(lost, "again", outcome=outcome)
    with effect_scope("e" * 64):
        done = await execute(tool, default_timeout_s=0.01)
    assert content in done.result.content
    assert (done.failure and done.failure.code) == code
    assert (tool.runs, tool.asked) == (runs, ["e" * 64])
    assert done.failure is None or not done.failure.retryable


@pytest.mark.parametrize(
    ("fields", "failed", "code"),
    [
        ({"safety": ToolSafety.READ}, 60.0, ErrorCode.TOOL_TIMEOUT),
        ({"safety": ToolSafety.NONE}, 60.0, ErrorCode.TOOL_TIMEOUT),
        ({"idempotent": True}, 60.0, ErrorCode.TOOL_TIMEOUT),
        ({}, ToolUnavailable("it was not reached"), ErrorCode.TOOL_UNAVAILABLE),
        ({}, ToolFailed("no"), ErrorCode.TOOL_EXECUTION_FAILED),
    ],
)
async def test_the_outcome_of_other_calls_is_known(fields, failed, code):
    tool = KnowingTool(failed, outcome="never asked", **fields)
    with effect_scope("e" * 64):
        done = await execute(tool, default_timeout_s=0.01, max_retries=0)
    assert (done.failure.code, tool.asked) == (code, [])


async def test_a_tool_that_cannot_say_leaves_the_outcome_unknown():
    tool = ScriptedTool(60.0)
    tool.definition = replace(tool.definition, safety=ToolSafety.EXTERNAL)
    done = await execute(tool, default_timeout_s=0.01)
    assert done.failure.code is ErrorCode.TOOL_OUTCOME_UNKNOWN
    assert "did not finish within 0.01 s" in done.failure.message


async def test_a_function_gets_the_effect_id_and_says_what_became_of_it():
    effects = {}

    @tool_of(safety="external")
    def pay(euros: int, context: ToolContext) -> str:
        """Pays."""
        effects[context.effect_id] = euros
        return f"paid {euros}"

    @pay.outcome
    def outcome_of(effect_id: str) -> dict[str, int]:
        if effect_id not in effects:
            raise ToolNotRun
        return {"euros": effects[effect_id]}

    clock = SystemClock()
    executor = executor_of([FunctionToolAdapter(pay, Machine(clock))], clock)
    with effect_scope("a" * 64):
        assert (await executor.execute(ToolCall("c", "pay", '{"euros": 3}'), Deadline())).result.content == "paid 3"
    assert await executor.find_outcome("pay", "a" * 64) == LostCall(Ending.DONE, '{"euros":3}')
    assert await executor.find_outcome("pay", "b" * 64) == LostCall(Ending.NOT_RUN)
    assert await executor.find_outcome("pay", "") == LostCall(Ending.UNKNOWN)
    assert await executor.find_outcome("nothing", "a" * 64) == LostCall(Ending.UNKNOWN)
    pay.outcome(None)
    assert await executor.find_outcome("pay", "a" * 64) == LostCall(Ending.UNKNOWN)


async def test_a_call_that_still_runs_in_its_thread_is_not_made_again():
    paid, has_begun, may_end = [], threading.Event(), threading.Event()

    @tool_of(safety="external", timeout_s=0.5)
    def pay(euros: int) -> str:
        """Pays."""
        has_begun.set()
        may_end.wait(10)
        paid.append(euros)
        return f"paid {euros}"

    @pay.outcome
    def outcome_of(_effect_id: str) -> str:
        raise ToolNotRun

    clock = SystemClock()
    executor = executor_of([FunctionToolAdapter(pay, Machine(clock))], clock)
    with effect_scope("a" * 64):
        running = asyncio.create_task(executor.execute(ToolCall("c", "pay", '{"euros": 3}'), Deadline()))
    await asyncio.to_thread(has_begun.wait, 10)
    await asyncio.sleep(0.7)
    may_end.set()
    done = await running
    assert (done.result.content, done.attempts, paid) == ("paid 3", 1, [3])
    assert await executor.find_outcome("pay", "a" * 64) == LostCall(Ending.NOT_RUN), "the thread has ended"


class Redacting(ToolHook):
    def after(self, name, arguments, result):
        return result.replace("hunter2", "[secret]")


async def test_hooks_read_the_result_of_a_lost_call_and_it_is_bounded():
    tool = KnowingTool(outcome="it is hunter2")
    executor = ToolExecutor(
        ToolRegistry([tool]), SystemClock(), ExecutionLimits(max_result_bytes=20), hooks=[Redacting()]
    )
    assert await executor.find_outcome("scripted", "e" * 64) == LostCall(Ending.DONE, "it is [secret]")
    tool.ending = "x" * 21
    lost = await executor.find_outcome("scripted", "e" * 64)
    assert lost.ending is Ending.DONE
    assert lost.content.startswith("the call was done, but its result has 21 bytes")
