"""What every TextWorkload promises: decoded here, by another engine over HTTP, and by a route over both."""

import asyncio
import time

import pytest

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.app.workload import TextWorkload
from services.inference.core.generation import (
    CandidateEnd,
    ChatPrompt,
    Completed,
    Constraint,
    ConstraintKind,
    Delta,
    FinishReason,
    InferenceRequest,
    Sampling,
    Started,
)
from services.inference.core.request_check import MAX_CANDIDATES
from tests.support.engine_server import choice, engine_server, refusal, usage
from tests.support.inference_app import generation_over
from tests.support.llama_server import WINDOW, bundled_llama_server
from tests.support.remote_app import models_of, remote

ANSWER = "one two three"
SLOW_S = 0.02
GREEDY = Sampling(temperature=0.0, given=frozenset({"temperature"}))
TOOL = ToolDefinition("stock", "Counts.", '{"type":"object"}')


async def scripted_answer(body):
    """Answer as the scripted engine does, a character for a token."""
    prompt = body["messages"][-1]["content"]
    if len(prompt) > WINDOW:
        return refusal(400, "the prompt is longer than the context length")
    text, reason = ANSWER, "stop"
    for stop in body.get("stop", []):
        text = text.partition(stop)[0]
    if body["max_tokens"] < len(text):
        text, reason = text[: body["max_tokens"]], "length"
    count = body.get("n", 1)
    events = [choice(index, content=char) for char in text for index in range(count)]
    events += [choice(index, reason) for index in range(count)]
    return [*events, usage(prompt_tokens=len(prompt), completion_tokens=count * len(text))]


@pytest.fixture
async def engine():
    async with engine_server() as served:
        served.script = scripted_answer
        served.pause_s = SLOW_S
        yield served


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory):
    with bundled_llama_server(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(params=["here", "remote", "route", "llama-server"])
async def models(request, engine):
    if request.param == "here":
        scripted = ScriptedEngine(ANSWER, context_window=WINDOW, on_decode=lambda _slices: time.sleep(SLOW_S))
        made = models_of({}, local=[generation_over(scripted)])
    elif request.param == "llama-server":
        server = request.getfixturevalue("llama_server")
        made = models_of({"far": remote(server.url, context_window=WINDOW)})
    else:
        routes = {"best": {"models": ["far"]}} if request.param == "route" else {}
        default = {"default_model": "best"} if routes else {}
        made = models_of({"far": remote(engine.url, context_window=WINDOW)}, routes, **default)
    yield made
    await made.close()


@pytest.fixture
async def workload(models):
    async with models.use("") as served:
        yield served.infers()


def chat(text="hi", tools=(), choice=None, **fields):
    prompt = ChatPrompt((Message(Role.USER, text),), tuple(tools), choice or ToolChoice())
    return InferenceRequest(prompt, sampling=GREEDY, **{"max_tokens": 40, **fields})


async def collect(workload, request):
    return [event async for event in workload.infer(request)]


def text_of(events, index=0):
    return "".join(event.content for event in events if isinstance(event, Delta) and event.candidate_index == index)


def ends_of(events):
    return {event.candidate_index: event for event in events if isinstance(event, CandidateEnd)}


def test_it_is_a_text_workload(workload):
    assert isinstance(workload, TextWorkload)


async def test_the_events_come_in_the_order_of_the_contract(workload):
    events = await collect(workload, chat(seed=5))
    started, *deltas, end, completed = events
    assert isinstance(started, Started)
    assert started.seed == 5
    assert started.prompt_tokens > 0
    assert started.inference_id
    assert deltas
    assert all(isinstance(delta, Delta) for delta in deltas)
    counts = [delta.output_tokens for delta in deltas]
    assert counts == sorted(counts)
    assert isinstance(end, CandidateEnd)
    assert isinstance(completed, Completed)
    usage = completed.usage
    assert usage.output_tokens == end.output_tokens >= counts[-1]
    assert usage.context_tokens == usage.prompt_tokens + usage.output_tokens
    assert usage.context_window == started.model.context_window
    assert 0 <= usage.cached_prompt_tokens <= usage.prompt_tokens


async def test_a_limit_ends_an_answer_with_exactly_its_tokens(workload):
    events = await collect(workload, chat(max_tokens=3))
    (end,) = ends_of(events).values()
    assert (end.finish_reason, end.output_tokens) == (FinishReason.LENGTH, 3)
    assert text_of(events)


async def test_a_stop_string_ends_an_answer_and_is_not_part_of_it(workload):
    assert " " in text_of(await collect(workload, chat()))
    events = await collect(workload, chat(stop=(" ",)))
    (end,) = ends_of(events).values()
    assert end.finish_reason is FinishReason.STOP
    assert text_of(events)
    assert " " not in text_of(events)


async def test_each_candidate_ends_once(workload):
    events = await collect(workload, chat(candidate_count=3, max_tokens=4))
    assert set(ends_of(events)) == {0, 1, 2}
    assert all(text_of(events, index) for index in range(3))
    assert isinstance(events[-1], Completed)
    assert events[-1].usage.output_tokens == sum(end.output_tokens for end in ends_of(events).values())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (chat("word " * WINDOW), ErrorCode.INFERENCE_CONTEXT_EXCEEDED),
        (chat(candidate_count=MAX_CANDIDATES + 1), ErrorCode.CONFIG_INVALID),
        (chat(tools=[TOOL], choice=ToolChoice(tool_name="other")), ErrorCode.TOOL_NOT_FOUND),
        (chat(choice=ToolChoice(ToolChoiceMode.REQUIRED)), ErrorCode.CONFIG_INVALID),
        (chat(constraint=Constraint(ConstraintKind.REGEX, "(")), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_with_its_code(workload, request_, code):
    with pytest.raises(InvalidRequest) as refused:
        await collect(workload, request_)
    assert refused.value.code is code
    assert text_of(await collect(workload, chat()))


async def test_leaving_an_answer_frees_its_place(models, workload):
    stream = workload.infer(chat(max_tokens=200))
    async for event in stream:
        if isinstance(event, Delta):
            break
    await stream.aclose()
    async with asyncio.timeout(60):
        while models.load().running_sequences:  # noqa: ASYNC110 - the engine's thread tells nobody
            await asyncio.sleep(0.01)
    assert text_of(await collect(workload, chat()))


async def test_a_deadline_ends_an_answer(workload):
    with work_scope(deadline=Deadline.after(SystemClock().monotonic_s(), 0.001)), pytest.raises(DeadlineExceeded):
        await collect(workload, chat(max_tokens=200))
    assert text_of(await collect(workload, chat()))


async def test_a_longer_conversation_counts_more(workload):
    short, long = ChatPrompt((Message(Role.USER, "hi"),)), ChatPrompt((Message(Role.USER, "hi " * 50),))
    assert 0 < await workload.count_chat(short) < await workload.count_chat(long)
    assert await workload.preparation.count(["", "abc abc abc"]) > [0, 0]
