"""Constraints that mean harm: tried in a worker process, so that the service that has the model stays as it is.

The bounds: 1.5 s and 512 MiB of a worker for one constraint, 32 MiB that it keeps here, 256 KiB of source.
"""

import asyncio
import json
import time
from functools import partial

import numpy as np
import psutil
import pytest
from llguidance import LLMatcher, LLParserLimits
from pydantic import ValidationError

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded
from pagantic_common.grammar import engine_text
from pagantic_common.grammar.engine_text import engine_text_of_schema
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.inference.adapters import constraint_trial
from services.inference.adapters.constraint_trial import MAX_MEMORY_BYTES
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.weights import load_model
from services.inference.adapters.llguidance_constraints import (
    GROWTH_BYTES,
    TOKEN_BYTES,
    WORN_TOKENS,
    Lexer,
    LlguidanceCompiler,
)
from services.inference.core.generation import Constraint, ConstraintKind
from services.inference.settings import InferenceSettings
from tests.support.patience import until_told

MIB = 1024 * 1024
BOMB = '{"type":"integer","multipleOf":999961}'  # minutes, or gigabytes
LARGE = '{"type":"integer","multipleOf":149993}'  # quick, but 60 MB


@pytest.fixture(scope="module")
def vocab():
    import llama_cpp  # noqa: PLC0415 - it takes long to load

    model = load_model(find_default_model(), gpu_layers=0, use_extra_bufts=False)
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


@pytest.fixture
async def compiler(vocab):
    async with ProcessWorkers(WorkerLimits(1, 1.5, 512, 8, constraint_trial.__name__)) as workers:
        made = LlguidanceCompiler(vocab, workers, cache_bytes=64 * MIB, monotonic_s=SystemClock().monotonic_s)
        yield made
        made.close()


def unchecked(schema_json):
    """The engine's text of a schema that we would refuse: a caller may send such a text itself."""
    return LLMatcher.grammar_from_json_schema(schema_json)


def schema(text):
    return Constraint(ConstraintKind.SCHEMA, text)


async def refused(compiler, constraint):
    """Return the error that the service refuses the constraint with."""
    with pytest.raises(InvalidRequest) as told:
        await until_told(partial(compiler.start, constraint))
    return told.value


@pytest.mark.parametrize("text", [BOMB, LARGE])
@pytest.mark.parametrize("kind", [ConstraintKind.SCHEMA, ConstraintKind.ENGINE_TEXT])
async def test_a_small_constraint_that_costs_much_is_refused_without_cost_to_this_process(compiler, kind, text):
    await compiler.start(schema('{"type": "null"}'))
    before = psutil.Process().memory_info().rss
    constraint = Constraint(kind, unchecked(text) if kind is ConstraintKind.ENGINE_TEXT else text)
    error = await refused(compiler, constraint)
    assert error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX
    assert psutil.Process().memory_info().rss - before < 20 * MIB
    started_s = time.perf_counter()
    with pytest.raises(InvalidRequest):
        await compiler.start(constraint)
    assert time.perf_counter() - started_s < 0.1  # it is remembered
    await compiler.start(schema('{"type": "boolean"}'))


async def test_a_caller_that_gives_up_is_let_go_at_once(compiler):
    started_s = time.perf_counter()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await compiler.start(Constraint(ConstraintKind.ENGINE_TEXT, unchecked(BOMB)))
    assert time.perf_counter() - started_s < 0.5


async def test_the_kept_constraints_stay_within_their_bytes(compiler):
    for number in range(9_000, 9_012):
        await compiler.start(schema(json.dumps({"type": "integer", "multipleOf": number})))
    assert GROWTH_BYTES < compiler._cache.used_bytes <= 64 * MIB
    assert len(compiler._cache._done) < 8


@pytest.mark.parametrize(
    ("constraint", "code"),
    [
        (schema('{"x": 1e999}'), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (schema(r'{"title": "\ud800"}'), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (schema('{"items":' * 130 + "{}" + "}" * 130), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (schema('{"not":' * 10_000 + "{}" + "}" * 10_000), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (schema('{"const": 9007199254740993}'), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (schema('{"type": "integer", "multipleOf": 999961}'), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (schema('{"description": "' + "x" * 262_144 + '"}'), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (Constraint(ConstraintKind.REGEX, "(a{1000}){999}"), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (Constraint(ConstraintKind.REGEX, "("), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Constraint(ConstraintKind.GBNF, "root ::= root"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Constraint(ConstraintKind.ENGINE_TEXT, "nonsense"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
    ],
)
async def test_what_the_engine_refuses_is_the_callers_to_change(compiler, constraint, code):
    error = await refused(compiler, constraint)
    assert error.code is code
    assert "<state>" not in str(error)


@pytest.mark.parametrize(
    "pattern", ["(.{1,50}x){1,50}.{1,1000}y", ".{0,1000}a.{0,1000}b.{0,1000}c", r"(\p{L}{1,900}x){900}"]
)
async def test_one_request_stops_a_step_for_a_fraction_of_a_second_whatever_its_pattern(compiler, pattern):
    """The bound is 0.5 s for each of 60 masks, on a machine that may be busy."""
    try:
        matcher = await compiler.start(Constraint(ConstraintKind.REGEX, pattern))
        draws = np.random.default_rng(1)
        for _ in range(60):
            started_s = time.perf_counter()
            allowed = np.flatnonzero(np.isfinite(matcher.mask(np.zeros(49_152, dtype=np.float32))))
            matcher.accept(int(draws.choice(allowed)))
            matcher.forced_tokens()
            assert time.perf_counter() - started_s < 0.5
    except InvalidRequest as error:
        assert error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX  # noqa: PT017 - either is right


async def test_more_constraints_than_may_wait_are_told_when_to_come_back(vocab):
    async with ProcessWorkers(WorkerLimits(1, 1.5, 512, 1, constraint_trial.__name__)) as workers:
        compiler = LlguidanceCompiler(vocab, workers, cache_bytes=64 * MIB, monotonic_s=SystemClock().monotonic_s)
        asked = [compiler.start(schema(json.dumps({"const": number}))) for number in range(8)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        compiler.close()
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert 0 < len(refusals) < len(outcomes)
    for error in refusals:
        assert isinstance(error, Overloaded)
        assert error.code is ErrorCode.INFERENCE_OVERLOADED
        assert error.retry_after_s


async def test_the_constraints_that_requests_hold_are_bounded_in_bytes_too(compiler):
    """64 MiB are kept, so 128 MiB may be held; each takes about 13."""
    held = []

    async def hold_many():
        for number in range(9_100, 9_130):
            constraint = schema(json.dumps({"type": "integer", "multipleOf": number}))
            held.append(await compiler.start(constraint))

    with pytest.raises(Overloaded, match="constraints of requests take") as refused:
        await hold_many()
    assert refused.value.code is ErrorCode.INFERENCE_OVERLOADED
    assert 64 * MIB < compiler.living_bytes <= 128 * MIB
    forks = [matcher.fork() for matcher in held]
    held.clear()
    assert compiler.living_bytes > 64 * MIB  # a fork holds what it shares
    forks.clear()
    await compiler.start(schema('{"type": "integer", "multipleOf": 9131}'))
    assert compiler.living_bytes <= 64 * MIB


PROSE = "The quick brown fox, aged 42, jumps over the lazy dog's café. "


def text_of(max_chars):
    return schema(json.dumps({"type": "string", "maxLength": max_chars}))


def decode(compiler, matcher, chars):
    """Decode prose as a model would write it."""
    logits = np.zeros(49_152, dtype=np.float32)
    text = json.dumps((PROSE * (chars // len(PROSE) + 1))[:chars], ensure_ascii=False)
    for token in compiler._tokenizer.tokenize_str(text):
        assert np.isfinite(matcher.mask(logits)[token])
        matcher.accept(token)
    assert matcher.is_complete()


async def test_a_long_text_within_its_bound_is_decoded_to_its_end(compiler):
    decode(compiler, await compiler.start(text_of(30_000)), 12_000)


async def test_a_request_that_uses_up_its_constraint_leaves_the_next_one_its_own(compiler, monkeypatch):
    few = LLParserLimits(initial_lexer_fuel=200_000, step_lexer_fuel=50_000, max_lexer_states=2000)
    monkeypatch.setattr(engine_text, "LIMITS_WITHOUT_PATTERN", few)
    matcher = await compiler.start(text_of(9000))
    with pytest.raises(InvalidRequest) as refused:
        decode(compiler, matcher, 3000)
    assert refused.value.code is ErrorCode.CONSTRAINT_TOO_COMPLEX
    decode(compiler, await compiler.start(text_of(9000)), 100)


async def test_a_constraint_that_much_was_decoded_with_is_counted_as_it_grew_and_built_anew(compiler):
    first, second = [await compiler.start(text_of(20_000)) for _ in range(2)]
    before = compiler.living_bytes
    decode(compiler, first, 100)
    assert not (await compiler.start(text_of(20_000))).lexer.is_worn
    assert compiler.living_bytes == before
    decode(compiler, second, 6000)
    assert second.lexer.is_worn
    assert compiler.living_bytes > before + TOKEN_BYTES * WORN_TOKENS - GROWTH_BYTES
    third = await compiler.start(text_of(20_000))
    assert not third.lexer.is_worn
    assert len(compiler._living) == 2
    del first, second
    assert len(compiler._living) == 1


async def test_a_constraint_that_is_worn_waits_for_no_other_that_is_tried(compiler, monkeypatch):
    decode(compiler, await compiler.start(text_of(20_000)), 6000)
    monkeypatch.setattr(compiler, "_workers", None)
    decode(compiler, await compiler.start(text_of(20_000)), 100)


async def test_a_constraint_that_counts_no_characters_is_not_worn_by_use(compiler):
    constraint = schema('{"type": "string"}')
    matcher = await compiler.start(constraint)
    decode(compiler, matcher, 6000)
    assert (await compiler.start(constraint)).lexer is matcher.lexer


def test_the_least_memory_for_constraints_that_can_be_set_has_room_for_some_of_the_largest():
    with pytest.raises(ValidationError, match="greater than or equal to 64"):
        InferenceSettings(constraint_cache_mib=63)
    assert 2 * 64 * MIB > 3 * (MAX_MEMORY_BYTES + GROWTH_BYTES)  # as much as is kept may be held besides


@pytest.mark.parametrize(
    ("source", "most"),
    [
        (engine_text_of_schema('{"type": "string"}'), 8 * MIB),
        (engine_text_of_schema('{"type": "string", "maxLength": 9}'), 72 * MIB),
        (engine_text_of_schema('{"type": "string", "pattern": "^a{1,9}$", "maxLength": 9}'), 32 * MIB),
    ],
)
def test_a_lexer_is_counted_as_no_larger_than_the_engine_lets_it_grow(source, most):
    assert Lexer(ConstraintKind.ENGINE_TEXT, source, 0, accepted_tokens=1_000_000).size_bytes == most
