"""Reasoning over a scripted engine, whose tokens are bytes, and a real matcher's stand-in for JSON."""

from contextlib import aclosing

from pagantic_common.domain.messages import Message, Role
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.core.generation import (
    CandidateEnd,
    ChatPrompt,
    Constraint,
    ConstraintKind,
    Delta,
    InferenceRequest,
    Reasoning,
    ReasoningMode,
    Sampling,
)
from tests.support.inference_app import TEMPLATE, generation_over
from tests.unit.inference.test_reasoning_phase import OnlyDigits

OPENS = TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %}{{ '<think>\n' }}{% endif %}"


class Digits:
    async def start(self, _constraint):
        return OnlyDigits()

    def close(self):
        pass


async def ask(script, **fields):
    generation = generation_over(ScriptedEngine(script), template=OPENS, constraints=Digits())
    request = InferenceRequest(
        ChatPrompt((Message(Role.USER, "hi"),)), sampling=Sampling(temperature=0.0), max_tokens=60, **fields
    )
    async with aclosing(generation.infer(request)) as events:
        said = [event async for event in events]
    await generation.close()
    deltas = [event for event in said if isinstance(event, Delta)]
    (end,) = (event for event in said if isinstance(event, CandidateEnd))
    return "".join(delta.reasoning for delta in deltas), "".join(delta.content for delta in deltas), end


SCHEMA = Constraint(ConstraintKind.ENGINE_TEXT, "digits")


async def test_a_reasoning_model_thinks_before_a_constrained_answer():
    reasoning, content, end = await ask("two and two</think>4", constraint=SCHEMA)
    assert (reasoning, content) == ("two and two", "4")
    assert end.constraint_satisfied


async def test_a_limit_closes_the_reasoning_and_the_answer_follows():
    reasoning, content, end = await ask("x" * 50, constraint=SCHEMA, reasoning=Reasoning(max_tokens=10))
    assert reasoning == "x" * 10
    assert content.isdigit()
    assert end.constraint_satisfied


async def test_thinking_that_is_off_leaves_the_constraint_from_the_first_token():
    reasoning, content, _ = await ask("4", constraint=SCHEMA, reasoning=Reasoning(ReasoningMode.OFF))
    assert (reasoning, content) == ("", "4")


async def test_free_text_has_a_limited_reasoning_too():
    reasoning, _, _ = await ask("y" * 55, reasoning=Reasoning(max_tokens=5))
    assert reasoning == "y" * 5
