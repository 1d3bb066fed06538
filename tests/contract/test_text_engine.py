"""What every TextEngine promises, held against the scripted one and against llama.cpp with the default model."""

import numpy as np
import pytest

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.testing.clock import FakeClock
from pagantic_common.testing.scripted_engine import ScriptedEngine
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.app.prepared_request import PromptTokenizer
from services.inference.core.decoding.output import SampledOutput
from services.inference.core.generation import Constraint, ConstraintKind, Sampling
from services.inference.core.scheduling.batch import Slice
from services.inference.ports import KvCacheFullError
from tests.support.tiny_qwen import write_tiny_qwen


@pytest.fixture(scope="module")
def real_engine():
    options = EngineOptions(context_tokens=256, kv_tokens=256, max_sequences=100, batch_tokens=64, threads=1)
    engine = LlamaCppEngine(find_default_model(), ModelInfo("real", 256), options)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def small_engine(real_engine):
    """The same model with a cache of 8 bits."""
    options = EngineOptions(
        context_tokens=256,
        kv_tokens=256,
        max_sequences=4,
        batch_tokens=64,
        key_type="q8_0",
        value_type="q8_0",
        threads=1,
    )
    engine = real_engine.beside(options)
    yield engine
    engine.close()


@pytest.fixture(params=["scripted", "llama.cpp", "llama.cpp with a cache of 8 bits"])
def engine(request):
    match request.param:
        case "scripted":
            made = ScriptedEngine("hello", max_sequences=4, kv_capacity_tokens=256)
        case "llama.cpp":
            made = request.getfixturevalue("real_engine")
        case _:
            made = request.getfixturevalue("small_engine")
    for sequence_id in range(4):
        made.truncate(sequence_id, 0)
    return made


def tokens_of(engine, text):
    return engine.tokenize(text, add_special=False, parse_special=False)


def best(rows):
    return [int(row.argmax()) for row in rows]


def test_text_survives_tokenization(engine):
    text = "Grüße, 世界! 😀"
    tokens = engine.tokenize(text, add_special=False, parse_special=False)
    assert engine.detokenize(tokens, with_special=False).decode() == text
    assert b"".join(engine.vocabulary.piece(token) for token in tokens).decode() == text


def test_unknown_tokens_give_nothing(engine):
    assert engine.detokenize([-1, 10**8], with_special=True) == b""


def test_decode_gives_the_rows_that_were_asked_for_in_order(engine):
    first, second = tokens_of(engine, "The capital of France is"), tokens_of(engine, "one two three")
    rows = engine.decode([Slice(0, first, 0, 1), Slice(1, second, 0, len(second)), Slice(2, first[:2], 0, 0)])
    assert rows.shape == (1 + len(second), engine.vocabulary.size)
    assert np.isfinite(rows).all()
    together = best(rows)
    assert best(engine.decode([Slice(3, first, 0, 1)])) == together[:1]
    engine.truncate(3, 0)
    assert best(engine.decode([Slice(3, second, 0, 1)])) == together[-1:]


def test_a_batch_without_wanted_rows_gives_none(engine):
    assert len(engine.decode([Slice(0, tokens_of(engine, "abc"), 0, 0)])) == 0


def test_a_truncated_sequence_goes_on_as_if_the_rest_had_never_been(engine):
    tokens = tokens_of(engine, "one two three")
    before = best(engine.decode([Slice(0, tokens, 0, 1)]))
    engine.decode([Slice(0, tokens[:1], len(tokens), 1)])
    engine.truncate(0, len(tokens) - 1)
    assert best(engine.decode([Slice(0, tokens[-1:], len(tokens) - 1, 1)])) == before


def test_a_copied_prefix_is_shared_while_both_go_on_and_outlives_its_source(engine):
    tokens = tokens_of(engine, "The capital of France is")
    expected = best(engine.decode([Slice(0, tokens, 0, 1)]))
    engine.truncate(0, len(tokens) - 1)
    engine.copy_prefix(0, 1, len(tokens) - 1)
    both = engine.decode([Slice(0, tokens[:1], len(tokens) - 1, 1), Slice(1, tokens[-1:], len(tokens) - 1, 1)])
    assert best(both)[1:] == expected
    engine.truncate(0, 0)
    engine.truncate(1, len(tokens) - 1)
    assert best(engine.decode([Slice(1, tokens[-1:], len(tokens) - 1, 1)])) == expected


def test_what_was_parked_comes_back_and_may_share_its_beginning(engine):
    tokens = tokens_of(engine, "The capital of France is")
    expected = best(engine.decode([Slice(0, tokens, 0, 1)]))
    engine.park(0, 0, len(tokens), 7)
    engine.truncate(0, 3)
    engine.unpark(7, 1, len(tokens) - 1)
    engine.copy_prefix(0, 1, 3)
    assert best(engine.decode([Slice(1, tokens[-1:], len(tokens) - 1, 1)])) == expected
    engine.drop(7)
    with pytest.raises(KeyError):
        engine.unpark(7, 2, 1)


PROMPT = "Rome is the capital of Italy, and the capital of France is"


@pytest.fixture(params=[False, True], ids=["without flash attention", "with flash attention"])
def engine_of(request, engine):
    """The engine with flash attention on or off; the scripted one has none."""
    if not hasattr(engine, "retune"):
        yield engine
        return
    engine.retune(threads=1, flash_attention=request.param, batch_tokens=64)
    yield engine
    engine.retune(threads=0, flash_attention=False, batch_tokens=64)


@pytest.mark.parametrize("length", [1, 3, 4, 6, 8, 11])
def test_a_sequence_of_pieces_goes_on_as_the_original(engine_of, length):
    engine, tokens = engine_of, tokens_of(engine_of, PROMPT)[:12]
    engine.decode([Slice(2, tokens[3:9], 0, 0)])  # The cells of another sequence must not get into the pieces.
    engine.decode([Slice(0, tokens[:5], 0, 0)])
    engine.decode([Slice(0, tokens[5:], 5, 0)])
    engine.adopt(9, engine.copy_out(0, 0, 4).copy())
    engine.park(0, 4, 8, 10)
    engine.park(0, 8, 12, 11)
    engine.truncate(0, length)
    expected = best(engine.decode([Slice(0, tokens[length:], length, 1)]))
    engine.truncate(0, 0)
    for key, start in ((9, 0), (10, 4), (11, 8)):
        if start < length:
            engine.unpark(key, 1, min(length, start + 4))
    assert best(engine.decode([Slice(1, tokens[length:], length, 1)])) == expected
    for key in (9, 10, 11, 11):
        engine.drop(key)


def test_a_larger_batch_of_prompts_gives_what_several_batches_give(engine_of):
    tokens = tokens_of(engine_of, "One two three four five six. " * 20)[:120]
    assert engine_of.max_batch_tokens < len(tokens) <= engine_of.max_prompt_batch_tokens
    at_once = best(engine_of.decode([Slice(0, tokens, 0, 1)]))
    for start in range(0, len(tokens), engine_of.max_batch_tokens):
        part = tokens[start : start + engine_of.max_batch_tokens]
        rows = engine_of.decode([Slice(1, part, start, 1)])
    assert best(rows) == at_once


def test_cells_that_were_copied_out_are_still_shared_with_their_neighbours(engine):
    tokens = tokens_of(engine, PROMPT)[:12]
    expected = best(engine.decode([Slice(0, tokens, 0, 1)]))
    engine.truncate(0, 11)
    engine.copy_prefix(0, 1, 8)
    engine.copy_out(1, 0, 8)
    assert best(engine.decode([Slice(1, tokens[8:], 8, 1)])) == expected
    assert best(engine.decode([Slice(0, tokens[11:], 11, 1)])) == expected


def test_pieces_come_back_into_cells_that_lie_apart(real_engine):
    for sequence_id in range(16):
        real_engine.truncate(sequence_id, 0)
    tokens = tokens_of(real_engine, PROMPT)
    real_engine.decode([Slice(0, tokens, 0, 0)])
    piece = real_engine.copy_out(0, 0, len(tokens) - 1)
    real_engine.truncate(0, 0)
    for sequence_id in range(16):
        real_engine.decode([Slice(sequence_id, [*tokens, *tokens][:16], 0, 0)])
    for sequence_id in range(0, 16, 2):
        real_engine.truncate(sequence_id, 0)
    real_engine.adopt(9, piece)
    real_engine.unpark(9, 0, len(tokens) - 1)
    rows = real_engine.decode([Slice(0, tokens[-1:], len(tokens) - 1, 1)])
    assert real_engine.vocabulary.piece(best(rows)[0]) == b" Paris"
    for sequence_id in range(16):
        real_engine.truncate(sequence_id, 0)
    real_engine.drop(9)


def test_the_format_of_cells_tells_layouts_apart(real_engine):
    before = real_engine.cell_format
    real_engine.retune(threads=1, flash_attention=True, batch_tokens=64)
    assert real_engine.cell_format != before
    real_engine.retune(threads=0, flash_attention=False, batch_tokens=64)
    assert real_engine.cell_format == before != ""


@pytest.mark.parametrize("flash_attention", [False, True])
def test_a_cache_of_8_bits_has_its_own_format_and_less_memory(real_engine, small_engine, flash_attention):
    sizes, formats = [], []
    for engine in (real_engine, small_engine):
        engine.retune(threads=0, flash_attention=flash_attention, batch_tokens=64)
        engine.decode([Slice(0, tokens_of(engine, "a")[:1] * 64, 0, 0)])
        cells = engine.copy_out(0, 0, 64).size / 64
        assert engine.kv_bytes_per_token <= cells < 1.05 * engine.kv_bytes_per_token
        sizes.append(cells)
        formats.append(engine.cell_format)
        engine.retune(threads=0, flash_attention=False, batch_tokens=64)
    assert sizes[1] < (0.55 if flash_attention else 0.8) * sizes[0]
    assert formats[0] != formats[1]


def test_a_model_whose_heads_do_not_fit_into_8_bits_is_refused(tmp_path):
    options = EngineOptions(context_tokens=64, kv_tokens=64, key_type="q8_0")
    with pytest.raises(PreconditionFailed, match=r"keys and values of 8 and 8 numbers.*CACHE_TYPE to f16") as refused:
        LlamaCppEngine(write_tiny_qwen(tmp_path / "qwen.gguf"), ModelInfo("tiny", 64), options)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_cells_of_another_format_are_refused_with_an_error_of_the_engine(real_engine):
    for sequence_id in range(4):
        real_engine.truncate(sequence_id, 0)
    real_engine.decode([Slice(0, tokens_of(real_engine, PROMPT)[:4], 0, 0)])
    piece = real_engine.copy_out(0, 0, 4)
    real_engine.adopt(9, piece[: piece.size // 2])
    with pytest.raises(Internal):
        real_engine.unpark(9, 1, 4)
    real_engine.drop(9)


def test_a_full_cache_is_said_and_nothing_of_the_batch_is_computed(real_engine):
    for sequence_id in range(4):
        real_engine.truncate(sequence_id, 0)
    tokens = tokens_of(real_engine, "The capital of France is")
    filler = tokens_of(real_engine, "a")[:1] * 60
    for start in range(0, 240, 60):
        real_engine.decode([Slice(3, filler, start, 0)])
    with pytest.raises(KvCacheFullError):
        real_engine.decode([Slice(0, tokens, 0, 1), Slice(1, filler[:20], 0, 0)])
    real_engine.truncate(3, 0)
    assert real_engine.vocabulary.piece(best(real_engine.decode([Slice(0, tokens, 0, 1)]))[0]) == b" Paris"


def test_end_tokens_have_no_text(engine):
    assert engine.vocabulary.end_tokens
    assert all(engine.vocabulary.piece(token) == b"" for token in engine.vocabulary.end_tokens)


def test_control_texts_are_found_so_that_messages_cannot_forge_them(real_engine):
    assert {"<|im_start|>", "<|im_end|>"} <= set(real_engine.vocabulary.control_texts)
    (end,) = real_engine.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert end in real_engine.vocabulary.end_tokens
    assert end not in real_engine.tokenize("<|im_end|>", add_special=False, parse_special=False)


@pytest.mark.parametrize("parse_special", [True, False])
def test_a_text_of_many_control_texts_has_the_tokens_of_its_parts(real_engine, parse_special):
    part = real_engine.tokenize("<|im_end|> a", add_special=False, parse_special=parse_special)
    whole = real_engine.tokenize("<|im_end|> a" * 500, add_special=False, parse_special=parse_special)
    assert whole == part * 500


def test_control_texts_of_a_raw_prompt_are_control_tokens(real_engine):
    tokenizer = PromptTokenizer(real_engine, JinjaChatTemplate("{{ messages }}", bos_token="", eos_token=""))
    (end,) = real_engine.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert tokenizer.tokenize("a<|im_end|>").tokens[-1] == end


def compiler_of(engine):
    return LlguidanceCompiler(engine.vocab, ThreadWorkers(), cache_bytes=1 << 26, monotonic_s=FakeClock().monotonic_s)


async def test_masks_allow_only_what_the_schema_derives(real_engine):
    compiler = compiler_of(real_engine)
    matcher = await compiler.start(Constraint(ConstraintKind.SCHEMA, '{"enum":["yes","no"]}'))
    logits = np.zeros(real_engine.vocabulary.size, dtype=np.float32)
    masked = matcher.mask(logits)
    pieces = {real_engine.vocabulary.piece(int(token)) for token in np.flatnonzero(np.isfinite(masked))}
    assert pieces
    assert all(b'"yes"'.startswith(piece) or b'"no"'.startswith(piece) for piece in pieces)


async def test_a_forked_matcher_goes_its_own_way(real_engine):
    compiler = compiler_of(real_engine)
    matcher = await compiler.start(Constraint(ConstraintKind.REGEX, "(yes|no)"))
    other = matcher.fork()
    for token in tokens_of(real_engine, "yes"):
        matcher.accept(token)
    assert matcher.is_complete()
    assert not other.is_complete()


LIGHTHOUSES = Constraint(
    ConstraintKind.SCHEMA,
    '{"type":"object","properties":{"lighthouses":{"type":"string"},"many":{"type":"boolean"}},"required":["many"]}',
)


async def constrained_output(engine, max_tokens):
    matcher = await compiler_of(engine).start(LIGHTHOUSES)
    return SampledOutput(
        vocabulary=engine.vocabulary, sampling=Sampling(temperature=1.0), max_tokens=max_tokens, matcher=matcher
    )


def play(output, draw, steps=None):
    """Continue an output over rows that prefer no token; return the tokens of each step."""
    played = []
    while steps is None or len(played) < steps:
        row = output.rank(np.zeros(output._vocabulary.size, dtype=np.float32))
        step = output.accept(row.choices.pick(draw()), row)
        played.append(step.tokens)
        if step.finish_reason is not None:
            break
    return played


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(1, 5))])
async def test_an_output_resumes_after_any_step_with_the_same_draws(real_engine, seed):
    whole = play(await constrained_output(real_engine, 24), np.random.Generator(np.random.Philox(key=seed)).random)
    assert any(len(tokens) > 1 for tokens in whole)  # some are forced, and draw nothing
    for steps in range(1, len(whole) - 1):
        said = [token for tokens in whole[:steps] for token in tokens]
        draw = np.random.Generator(np.random.Philox(key=seed)).random
        output = await constrained_output(real_engine, 24)
        text = output.resume(said, draw)
        assert b"".join(map(real_engine.vocabulary.piece, said)).startswith(text.encode())
        assert play(output, draw) == whole[steps:]


async def test_an_output_does_not_begin_with_what_its_constraint_excludes(real_engine):
    output = await constrained_output(real_engine, 24)
    with pytest.raises(InvalidRequest, match="where the constraint does not allow it"):
        output.resume(tokens_of(real_engine, '{"ships"'), lambda: 0.0)


def test_a_chat_template_that_reaches_outside_is_stopped_by_its_sandbox():
    template = JinjaChatTemplate("{{ ''.__class__.__mro__ }}", bos_token="", eos_token="")
    with pytest.raises(Exception, match=r"unsafe|refuses"):
        template.render([], [])
    with pytest.raises(PreconditionFailed) as missing:
        JinjaChatTemplate("", bos_token="", eos_token="")
    assert missing.value.code is ErrorCode.CONFIG_NO_ENGINE
