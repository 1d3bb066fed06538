"""Answers that are long: what is kept of them as they stream, and what of a response can be sent."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role, ToolChoice
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.app.effects.guarding.answering import OutputGuards
from services.orchestrator.app.effects.guarding.guarded_text import MAX_DELTA
from services.orchestrator.app.running.execution import fit_response
from services.orchestrator.convert.response import response_to_proto
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.progress import InferenceProgress
from services.orchestrator.core.model.contract import MAX_BACKOFF_S, RetryPolicy
from services.orchestrator.core.model.plan import (
    MAX_STEP_TIMEOUT_S,
    CallResult,
    Plan,
    PlanPolicy,
    Step,
    StepResult,
    Value,
    ValueKind,
)
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import (
    Candidate,
    FinishReason,
    InferenceDelta,
    InferenceOutput,
    Response,
    TokenLogprob,
    ToolCallRecord,
)
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.text_size import encoded_bound
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Infer, Inferred
from services.orchestrator.core.turn.ending import Failed, Finish, raised_limit, truncation_of
from services.orchestrator.core.turn.run import State

USAGE = TokenUsage(prompt_tokens=10, output_tokens=3, context_tokens=13, context_window=100)
CHAT = Request("r", Mode.CHAT, (Message(Role.USER, "hi"),))


class Piece(str):
    """A text that counts the characters that are copied to put it behind others."""

    __slots__ = ()
    copied = 0

    def __radd__(self, before):
        Piece.copied += len(before)
        return Piece(str(before) + str(self))

    def __add__(self, after):
        Piece.copied += len(self)
        return Piece(str(self) + str(after))


@pytest.fixture
def pieces(monkeypatch):
    monkeypatch.setattr(Piece, "copied", 0)
    return [Piece(f"{number:05} ") for number in range(2000)]


def test_a_text_is_not_copied_for_each_piece_of_it(pieces):
    progress = InferenceProgress()
    for piece in pieces:
        progress.add(InferenceDelta(piece, piece, USAGE))
        assert progress.usage == USAGE, "asking what it has cost joins nothing"
    assert Piece.copied == 0
    assert progress._contents == progress._reasonings == pieces
    assert progress.said.content == progress.said.reasoning == "".join(pieces)
    assert progress.said is progress.said, "what is joined is kept"
    progress.add(InferenceDelta("more", usage=USAGE))
    assert progress.said.content == "".join(pieces) + "more"
    assert progress.said.reasoning == "".join(pieces)


def test_a_text_that_is_not_streamed_is_not_kept_but_what_it_cost_is():
    progress = InferenceProgress()
    progress.add(InferenceDelta("secret", "thought", USAGE, "small", 7), keeps_text=False)
    assert progress.said == InferenceOutput("", FinishReason.ERROR, usage=USAGE, model="small", seed=7)
    assert progress.give_up().content == ""
    assert progress.said is None


async def guarded(deltas, output):
    """Return the deltas and the output that guards let pass in a deployment without guards."""
    passed = []

    async def take(delta):
        passed.append(delta)

    scope = SimpleNamespace(services=SimpleNamespace(guards=None))
    guards = OutputGuards(CHAT, Infer(CHAT.messages, (), ToolChoice(), "", None), scope)
    for delta in deltas:
        await guards.take(delta, take)
    return passed, await guards.finish(output, take)


async def test_the_guards_copy_no_text_for_each_piece_of_it(pieces):
    output = InferenceOutput("".join(pieces), FinishReason.STOP)
    passed, checked_output = await guarded([InferenceDelta(piece, piece, USAGE) for piece in pieces], output)
    assert [delta.content for delta in passed[:-1]] == pieces
    assert checked_output == output
    assert Piece.copied == 0


async def test_what_the_guards_let_out_at_once_comes_in_parts_that_can_be_sent():
    content, reasoning = "é" * (2 * MAX_DELTA + 1), "x" * MAX_DELTA
    output = InferenceOutput(content, FinishReason.STOP, reasoning=reasoning)
    passed, _ = await guarded([InferenceDelta(content, reasoning, USAGE)], output)
    assert "".join(delta.content for delta in passed) == content
    assert "".join(delta.reasoning for delta in passed) == reasoning
    assert max(len(delta.content) + len(delta.reasoning) for delta in passed) == MAX_DELTA


TEXTS = st.text(max_size=300).map(lambda text: text.encode(errors="replace").decode())
TOKENS = st.builds(
    TokenLogprob,
    st.integers(0, 2**31 - 1),
    st.binary(max_size=20).map(lambda piece: piece.decode("latin-1")),
    st.floats(max_value=0, allow_nan=False),
)
LOGPROBS = st.lists(st.builds(replace, TOKENS, top=st.lists(TOKENS, max_size=5).map(tuple)), max_size=5).map(tuple)
FAILURES = st.builds(
    Failure,
    st.sampled_from(ErrorCode),
    TEXTS,
    details=st.dictionaries(TEXTS, st.deferred(lambda: JSON_VALUES), max_size=3),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inside: st.lists(inside, max_size=30) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=60,
)
DURATIONS = st.floats(0, MAX_STEP_TIMEOUT_S, exclude_min=True)
VALUES = st.builds(
    Value,
    st.sampled_from([ValueKind.TEXT, ValueKind.RAW_JSON]),
    TEXTS,
) | st.builds(
    Value,
    st.just(ValueKind.TOOL_RESULTS),
    results=st.lists(st.builds(CallResult, TEXTS, TEXTS, TEXTS, st.booleans()), max_size=3).map(tuple),
)
STEPS = st.builds(
    Step,
    TEXTS,
    TEXTS,
    st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
    st.none() | VALUES,
    st.lists(TEXTS, max_size=3).map(tuple),
    max_retries=st.none() | st.integers(0, 10),
    timeout_s=st.none() | DURATIONS,
    retry=st.none() | st.builds(RetryPolicy, st.integers(0, 10), st.floats(0, MAX_BACKOFF_S), st.booleans()),
)
PLANS = st.builds(
    Plan,
    st.lists(STEPS, max_size=3).map(tuple),
    st.builds(
        PlanPolicy,
        allowed_kinds=st.none() | st.frozensets(TEXTS, max_size=3),
        require_linear=st.booleans(),
        timeout_per_step_s=st.none() | DURATIONS,
    ),
)
USAGES = st.builds(
    TokenUsage, *(st.integers(0, 2**31 - 1) for _ in range(6)), decode_seconds=st.floats(0, 1e6, allow_nan=False)
)
RESULTS = st.builds(
    StepResult,
    TEXTS,
    TEXTS,
    st.none() | VALUES,
    st.none() | FAILURES,
    st.integers(1, 100),
    st.floats(0, MAX_STEP_TIMEOUT_S),
    USAGES,
    st.lists(st.builds(ResponseWarning, TEXTS, TEXTS), max_size=3).map(tuple),
)
RESPONSES = st.builds(
    Response,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    tool_calls_made=st.lists(
        st.builds(
            ToolCallRecord, TEXTS, TEXTS, TEXTS, TEXTS, st.booleans(), st.sampled_from(ErrorCode), st.floats(0, 1e6)
        ),
        max_size=3,
    ).map(tuple),
    candidates=st.lists(st.builds(Candidate, st.integers(0, 31), TEXTS, TEXTS, st.integers(0, 31)), max_size=3).map(
        tuple
    ),
    failure=st.none() | FAILURES,
    reasoning=TEXTS,
    warnings=st.lists(st.builds(ResponseWarning, TEXTS, TEXTS), max_size=3).map(tuple),
    logprobs=LOGPROBS,
    usage=USAGES,
    plan=st.none() | PLANS,
    step_results=st.lists(RESULTS, max_size=3).map(tuple),
)


@given(RESPONSES)
def test_no_response_is_larger_than_what_bounds_it(response):
    assert response_to_proto(response).ByteSize() <= encoded_bound(response)


@pytest.mark.parametrize("value", [[None] * 1000, [[]] * 1000, [{}] * 1000, [-0.1234567890123456] * 1000])
def test_no_json_object_is_larger_than_what_bounds_it(value):
    failure = failure_of(ErrorCode.CONFIG_INVALID, "no", details={"a": value})
    plan = Plan((Step("s", "tool", {"a": value}),))
    for response in (Response("r", "s", failure=failure), Response("r", "s", plan=plan)):
        size = response_to_proto(response).ByteSize()
        assert size <= encoded_bound(response) < size + 500


def test_the_kinds_that_a_plan_allows_count():
    response = Response("r", "s", plan=Plan(policy=PlanPolicy(allowed_kinds=frozenset(["x" * 1000, "y" * 1000]))))
    assert response_to_proto(response).ByteSize() <= encoded_bound(response)


def test_the_bound_of_long_texts_is_close():
    response = Response("r", "s", content="é" * 100_000, reasoning="x" * 100_000)
    size = response_to_proto(response).ByteSize()
    assert size <= encoded_bound(response) < size + 500


def asked():
    return machine.step(machine.start(CHAT).run, Prepared()).run


def test_a_response_that_fits_is_left_as_it_is():
    happened = Inferred(InferenceOutput("hello", FinishReason.STOP, usage=USAGE))
    outcome = machine.step(asked(), happened)
    assert fit_response(asked(), happened, outcome, 1000) == (outcome, happened)


def test_a_response_that_is_too_large_is_a_failure_that_says_what_to_do_and_keeps_what_it_cost():
    run, said = asked(), "x" * 2000
    happened = Inferred(InferenceOutput(said, FinishReason.STOP, usage=USAGE, model="small"))
    outcome, instead = fit_response(run, happened, machine.step(run, happened), 1000)
    response = outcome.command.response
    assert (response.failure.code, response.failure.retryable) == (ErrorCode.INFERENCE_OUTPUT_TRUNCATED, False)
    assert "at most 1000 can be sent (MAX_MESSAGE_BYTES): ask for less" in response.failure.message
    assert (response.usage, response.content) == (USAGE, "")
    assert outcome.run.model == "small", "the usage counts for the model that was used"
    assert [one.target for one in outcome.transitions] == [State.ERROR]
    assert isinstance(instead, Failed)
    again = machine.step(run, instead).run
    assert (again.state, again.model) == (State.ERROR, "small"), "whoever replays the journal finds the same end"


def test_a_failure_whose_response_is_too_large_stays_that_failure():
    run = asked()
    happened = Failed(
        failure_of(ErrorCode.CANCELLED_TIMEOUT, "late"), output=InferenceOutput("x" * 2000, FinishReason.ERROR)
    )
    outcome, instead = fit_response(run, happened, machine.step(run, happened), 1000)
    assert instead is happened
    assert isinstance(outcome.command, Finish)
    assert outcome.command.response.failure == happened.failure
    assert encoded_bound(outcome.command.response) <= 1000


def test_an_answer_that_was_cut_for_its_size_says_so_and_a_higher_limit_of_tokens_is_not_tried():
    cut = InferenceOutput("x" * 64, FinishReason.LENGTH, usage=USAGE, max_bytes=64)
    failure = truncation_of(CHAT, cut)
    assert "cut at 64 bytes, half of MAX_MESSAGE_BYTES" in failure.message
    assert "max_tokens" not in failure.message
    assert failure.details["max_bytes"] == 64
    assert raised_limit(CHAT, cut, 3) == 0
    assert raised_limit(CHAT, replace(cut, max_bytes=0), 3) > 0
