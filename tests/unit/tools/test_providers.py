"""Programs offer tools for as long as their stream lasts and they answer health checks."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Conflict, ErrorCode, InvalidRequest, NotFound, Overloaded, Unavailable
from pagantic_common.domain.messages import ToolCall, ToolDefinition, ToolFailed, ToolProgress, ToolSafety
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.scope import effect_scope
from pagantic_common.testing.clock import FakeClock
from services.tools.app.execution import ExecutionLimits, ToolExecutor
from services.tools.app.providers import CallAsked, CallWithdrawn, HealthAsked, Offered, OfferLimits, Providers
from services.tools.app.registry import ToolRegistry

SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
DOUBLE = ToolDefinition("double", "Doubles a number.", SCHEMA, safety=ToolSafety.READ)


class World:
    """A registry, the offers and an executor."""

    def __init__(self, **limits):
        self.registry = ToolRegistry()
        self.clock = FakeClock()
        self.asked_again = asyncio.Event()
        self.providers = Providers(self.registry, self.clock, OfferLimits(**limits), sleep=self._sleep)
        self.executor = ToolExecutor(self.registry, SystemClock(), ExecutionLimits(max_retries=0))

    async def _sleep(self, seconds):
        self.clock.advance(seconds)
        self.asked_again.clear()
        await self.asked_again.wait()

    def call(self, name="math_double", timeout_s=5.0):
        clock = SystemClock()
        deadline = Deadline.after(clock.monotonic_s(), timeout_s)
        return asyncio.create_task(self.executor.execute(ToolCall("c", name, '{"n": 21}'), deadline))

    @asynccontextmanager
    async def offering(self, *tools, name="math"):
        async with aclosing(self.providers.offer(name, tools or [DOUBLE])) as events:
            offered = await anext(events)
            assert isinstance(offered, Offered)
            assert isinstance(await anext(events), HealthAsked)
            yield offered, events


async def test_a_program_runs_the_calls_of_its_tools():
    world = World()
    async with world.offering() as (offered, events):
        (tool,) = offered.tools
        assert (tool.definition.name, tool.definition.safety) == ("math_double", ToolSafety.READ)
        with effect_scope("e" * 64):
            running = world.call()
        asked = await anext(events)
        assert isinstance(asked, CallAsked)
        assert asked.effect_id == "e" * 64
        assert (asked.call.name, asked.call.arguments_json) == ("double", '{"n":21}')
        world.providers.answer(offered.offer_id, asked.call.id, ToolProgress(1.0))
        world.providers.answer(offered.offer_id, asked.call.id, "42")
        world.providers.answer(offered.offer_id, asked.call.id, "too late")
        assert (await running).result.content == "42"


async def test_a_programs_own_failure_is_told_to_the_model():
    world = World()
    async with world.offering() as (offered, events):
        running = world.call()
        asked = await anext(events)
        world.providers.answer(offered.offer_id, asked.call.id, ToolFailed("the number is cursed"))
        outcome = await running
    assert outcome.failure.code is ErrorCode.TOOL_EXECUTION_FAILED
    assert "cursed" in outcome.result.content


async def test_a_call_that_takes_too_long_is_withdrawn():
    world = World()
    async with world.offering() as (_, events):
        outcome = await world.call(timeout_s=0.05)
        asked, withdrawn = await anext(events), await anext(events)
    assert outcome.failure.code is ErrorCode.TOOL_TIMEOUT
    assert withdrawn == CallWithdrawn(asked.call.id)


async def test_tools_vanish_with_their_program_and_its_calls_fail():
    world = World()
    async with world.offering() as (offered, events):
        running = world.call()
        await anext(events)
    assert (await running).failure.code is ErrorCode.TOOL_UNAVAILABLE
    assert world.registry.list_named() == []
    assert (await world.call()).failure.code is ErrorCode.TOOL_NOT_FOUND
    with pytest.raises(NotFound, match="has ended"):
        world.providers.answer(offered.offer_id, "call-1", "42")
    async with world.offering():
        assert world.registry.find("math_double") is not None


async def test_a_program_that_answers_no_health_check_loses_its_offer():
    world = World(health_check_s=10.0)
    async with world.offering() as (_, events):
        for _ in range(2):
            world.asked_again.set()
            assert isinstance(await anext(events), HealthAsked)
        world.asked_again.set()
        with pytest.raises(Unavailable, match="no health check for 30 s"):
            await anext(events)
        assert world.registry.list_named() == []


async def test_a_program_that_answers_keeps_its_offer_and_may_be_unavailable_meanwhile():
    world = World(health_check_s=10.0)
    async with world.offering() as (offered, events):
        for _ in range(6):
            world.providers.answer_health(offered.offer_id, "the printer is out of paper")
            world.asked_again.set()
            assert isinstance(await anext(events), HealthAsked)
        outcome = await world.call()
        assert outcome.failure.code is ErrorCode.TOOL_UNAVAILABLE
        assert "out of paper" in outcome.result.content
        world.providers.answer_health(offered.offer_id, "")
        running = world.call()
        asked = await anext(events)
        world.providers.answer(offered.offer_id, asked.call.id, "42")
        assert (await running).failure is None


async def test_offers_are_bounded_and_their_names_unique():
    world = World(max_offers=2, max_tools=2, max_calls=1)
    async with world.offering(name="a"):
        with pytest.raises(Conflict):
            await anext(world.providers.offer("a", [DOUBLE]))
        with pytest.raises(InvalidRequest):
            await anext(world.providers.offer("not a name", [DOUBLE]))
        three = [ToolDefinition(name, "", SCHEMA) for name in ("x", "y", "z")]
        async with world.offering(*three, name="b") as (more, events):
            assert len(more.tools) == 2
            assert "at most 2" in more.left_out["b_z"]
            with pytest.raises(Overloaded):
                await anext(world.providers.offer("c", [DOUBLE]))
            first = world.call("b_x")
            assert isinstance(await anext(events), CallAsked)
            assert "limit of 1 concurrent calls" in (await world.call("b_x")).result.content
            first.cancel()
            await asyncio.wait([first])


async def test_a_wrong_schema_leaves_out_its_tool_alone():
    world = World()
    wrong = ToolDefinition("wrong", "", "[]")
    async with world.offering(DOUBLE, wrong) as (offered, _):
        assert [tool.definition.name for tool in offered.tools] == ["math_double"]
        assert "math_wrong" in offered.left_out
