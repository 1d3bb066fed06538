"""Tools that a model may call, over a scripted engine whose chat template has no tools."""

from contextlib import aclosing

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded
from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolDefinition
from pagantic_common.grammar.engine_text import byte_tokenizer, engine_text_of_schema, start_ready_matcher
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.adapters.llguidance_constraints import Lexer, LlguidanceMatcher
from services.inference.core.generation import (
    CandidateEnd,
    ChatPrompt,
    Completed,
    Delta,
    FinishReason,
    InferenceRequest,
    Sampling,
)
from tests.support.inference_app import NoConstraints, generation_over

CLOCK = ToolDefinition(
    "clock",
    "Tells the time.",
    '{"type":"object","properties":{"unit":{"enum":["c","f"]}},"required":["unit"],"additionalProperties":false}',
)
WRONG = '{"name": "clock", "arguments": {"unit": "x"}}'
HELD, FREE = '{"unit": "c"}', '{"unit": "x"}'


class ByteConstraints:
    """Compiles schemas over bytes. The first `refusals` of them are refused."""

    def __init__(self, *refusals):
        self.refusals = list(refusals)

    async def start(self, constraint):
        if self.refusals:
            raise self.refusals.pop(0)
        text = engine_text_of_schema(constraint.text)
        return LlguidanceMatcher(start_ready_matcher(text, byte_tokenizer()), Lexer(constraint.kind, text, 1000))

    def close(self):
        pass


async def ask(script, constraints, *, tools=(CLOCK,), choice=None, **fields):
    """Return the content, the calls' names and arguments, the end and the usage of an answer."""
    generation = generation_over(ScriptedEngine(script), constraints=constraints)
    prompt = ChatPrompt((Message(Role.USER, "time?"),), tuple(tools), choice or ToolChoice())
    request = InferenceRequest(prompt, sampling=Sampling(temperature=0.0), max_tokens=80, **fields)
    async with aclosing(generation.infer(request)) as events:
        told = [event async for event in events]
    await generation.close()
    (end,) = (event for event in told if isinstance(event, CandidateEnd))
    content = "".join(event.content for event in told if isinstance(event, Delta))
    (completed,) = (event for event in told if isinstance(event, Completed))
    return content, [(call.name, call.arguments_json) for call in end.tool_calls], end, completed.usage


async def test_a_call_that_the_model_begins_is_held_to_the_schema_of_its_tool():
    content, calls, end, _ = await ask(WRONG, ByteConstraints())
    assert (content, calls, end.finish_reason) == ("", [("clock", HELD)], FinishReason.TOOL)
    assert end.calls_held
    assert not end.constraint_satisfied, "the request has no constraint"


async def test_a_demanded_call_is_held_too():
    _, calls, end, _ = await ask(WRONG, ByteConstraints(), choice=ToolChoice(tool_name="clock"))
    assert (calls, end.calls_held, end.constraint_satisfied) == ([("clock", HELD)], True, True)


async def test_words_are_as_free_as_without_tools_and_the_prompt_shows_the_tools():
    content, calls, end, usage = await ask("It is noon.", ByteConstraints())
    assert (content, calls, end.finish_reason, end.calls_held) == ("It is noon.", [], FinishReason.STOP, False)
    *_, without = await ask("It is noon.", ByteConstraints(), tools=())
    assert usage.prompt_tokens > without.prompt_tokens + len(CLOCK.parameters_json)


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidRequest("no", code=ErrorCode.CONSTRAINT_TOO_COMPLEX),
        Overloaded("no", code=ErrorCode.INFERENCE_OVERLOADED),
    ],
)
async def test_a_schema_that_the_decoder_cannot_hold_leaves_the_arguments_free_and_fails_nothing(refusal):
    _, calls, end, _ = await ask(WRONG, ByteConstraints(refusal))
    assert (calls, end.calls_held) == ([("clock", FREE)], False)
    _, calls, end, _ = await ask(WRONG, ByteConstraints(refusal, refusal))
    assert (calls, end.calls_held) == ([("clock", FREE)], False)
    _, calls, end, _ = await ask(WRONG, NoConstraints())
    assert (calls, end.calls_held) == ([("clock", FREE)], False)


async def test_a_stop_text_ends_an_answer_inside_a_call():
    content, calls, end, _ = await ask("So: " + WRONG, ByteConstraints(), stop=("clock",))
    assert (content, calls, end.finish_reason) == ('So: {"name": "', [], FinishReason.STOP)
    _, calls, end, _ = await ask(WRONG, ByteConstraints(), stop=("unit",))
    assert (calls, end.finish_reason, end.matched_stop) == ([], FinishReason.STOP, "unit")
