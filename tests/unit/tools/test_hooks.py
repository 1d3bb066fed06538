"""Hooks change, deny and redact calls; rates and breakers refuse them."""

import asyncio

import pytest

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ToolCall, ToolDefinition, ToolFailed
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.clock import FakeClock
from pagantic_common.tools import ToolDenied, ToolHook
from services.tools.adapters.loading import load_hooks
from services.tools.adapters.tool_rates import ToolRates
from services.tools.app.execution import ExecutionLimits, ToolExecutor
from services.tools.app.registry import ToolRegistry
from services.tools.ports import ToolUnavailable
from services.tools.settings import ToolsSettings

SCHEMA = '{"type": "object", "properties": {"word": {"type": "string"}}, "additionalProperties": false}'


class EchoTool:
    """Gives its word back, or raises what it holds."""

    definition = ToolDefinition("echo", "", SCHEMA)
    unavailable_reason = ""
    is_remote = True
    places = None

    def __init__(self):
        self.error = None
        self.calls = []

    async def run(self, arguments, _report):
        self.calls.append(dict(arguments))
        if self.error is not None:
            raise self.error
        return f"said {arguments.get('word', 'nothing')}"


class Shouting(ToolHook):
    def before(self, tool, arguments):
        if arguments.get("word") == "secret":
            raise ToolDenied("not that word")
        return {"word": arguments.get("word", "").upper()}


class Redacting(ToolHook):
    async def before(self, tool, arguments):
        return None

    async def after(self, tool, arguments, result):
        return result.replace("HUNTER2", "[gone]")


class Broken(ToolHook):
    def after(self, tool, arguments, result):
        raise RuntimeError(result)


class Wrong(ToolHook):
    def before(self, tool, arguments):
        return {"other": 1}


def executor(tool, *hooks, rates=None, clock=None):
    limits = ExecutionLimits(max_retries=0)
    return ToolExecutor(ToolRegistry([tool]), clock or FakeClock(), limits, rates, hooks)


async def call(running, word="hello"):
    return await running.execute(ToolCall("c", "echo", f'{{"word": "{word}"}}'), Deadline())


async def test_hooks_change_arguments_and_results_in_their_order():
    tool = EchoTool()
    outcome = await call(executor(tool, Shouting(), Redacting()), "hunter2")
    assert tool.calls == [{"word": "HUNTER2"}]
    assert outcome.result.content == "said [gone]"


async def test_a_hook_denies_a_call_and_the_model_learns_why():
    tool = EchoTool()
    outcome = await call(executor(tool, Shouting()), "secret")
    assert (outcome.failure.code, tool.calls) == (ErrorCode.TOOL_DENIED, [])
    assert "not that word" in outcome.result.content


async def test_a_hook_redacts_the_words_of_a_failure():
    tool = EchoTool()
    tool.error = ToolFailed("HUNTER2 is wrong")
    outcome = await call(executor(tool, Redacting()))
    assert outcome.failure.code is ErrorCode.TOOL_EXECUTION_FAILED
    assert "[gone] is wrong" in outcome.result.content


@pytest.mark.parametrize(
    ("hook", "code"), [(Broken(), ErrorCode.TOOL_EXECUTION_FAILED), (Wrong(), ErrorCode.TOOL_INVALID_ARGUMENTS)]
)
async def test_a_hook_that_fails_shows_no_result(hook, code):
    outcome = await call(executor(EchoTool(), hook))
    assert outcome.failure.code is code
    assert "said" not in outcome.result.content


async def test_a_result_that_a_hook_withholds_is_not_told_as_a_call_that_was_not_made():
    class Withholding(ToolHook):
        def after(self, tool, arguments, result):
            raise ToolDenied("it names people")

    outcome = await call(executor(EchoTool(), Withholding()))
    assert outcome.failure.code is ErrorCode.TOOL_EXECUTION_FAILED
    assert "withheld: it names people" in outcome.result.content


async def test_a_caller_in_a_hurry_does_not_close_a_tool_to_others():
    class Slow(EchoTool):
        async def run(self, arguments, report):
            await asyncio.sleep(0.05)
            return await super().run(arguments, report)

    running = executor(Slow(), clock=SystemClock())
    for _ in range(6):
        hurry = Deadline.after(SystemClock().monotonic_s(), 0.001)
        outcome = await running.execute(ToolCall("c", "echo", "{}"), hurry)
        assert outcome.failure.code is ErrorCode.TOOL_TIMEOUT
    assert (await call(running)).failure is None


async def test_a_tool_that_is_called_too_often_is_unavailable_and_others_are_not():
    rates = ToolRates({"ech*": "2/hour"})
    running = executor(EchoTool(), rates=rates)
    assert [(await call(running)).failure for _ in range(2)] == [None, None]
    refused = await call(running)
    assert (refused.failure.code, refused.attempts) == (ErrorCode.TOOL_UNAVAILABLE, 0)
    assert "2 per 1 hour" in refused.result.content
    assert [await rates.take("other") for _ in range(5)] == [""] * 5


async def test_a_tool_that_gives_no_answer_rests_until_a_probe_succeeds():
    clock, tool = FakeClock(), EchoTool()
    running = executor(tool, clock=clock)
    tool.error = ToolUnavailable("its server is gone")
    for _ in range(5):
        assert "gone" in (await call(running)).result.content
    refused = await call(running)
    assert (refused.failure.code, refused.attempts) == (ErrorCode.TOOL_UNAVAILABLE, 0)
    assert "in 5.0 s" in refused.result.content
    clock.advance(5)
    tool.error = ToolFailed("it answers again")
    for _ in range(2):
        assert (await call(running)).failure.code is ErrorCode.TOOL_EXECUTION_FAILED
    tool.error = None
    assert (await call(running)).failure is None


def test_hooks_are_loaded_by_name_and_what_is_none_is_refused(tmp_path):
    path = tmp_path / "guards.py"
    path.write_text(
        "from pagantic_common.tools import ToolHook\n\nclass Guard(ToolHook):\n    pass\n\nguard = Guard()\nother = 1\n"
    )
    hooks = load_hooks([f"{path}:Guard", f"{path}:guard", "pagantic_common.tools:ToolHook"])
    assert [type(hook).__name__ for hook in hooks] == ["Guard", "Guard", "ToolHook"]
    for wrong in (f"{path}:other", f"{path}:gone", "no.such.module:x", "nothing"):
        with pytest.raises(InvalidRequest):
            load_hooks([wrong])


def test_rates_are_read_from_the_settings():
    assert ToolsSettings(rates="http_*=30/minute, a=1/second").rates == {"http_*": "30/minute", "a": "1/second"}
    for wrong in ("a", "a=often", "=1/minute", "a=0/minute"):
        with pytest.raises(ValueError, match="as in 30/minute"):
            ToolsSettings(rates=wrong)
