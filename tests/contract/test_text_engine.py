"""What every TextEngine promises, held against the scripted one and against llama.cpp with the default model."""

import numpy as np
import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.jinja_chat_template import JinjaChatTemplate
from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler
from services.inference.core.generation import Constraint, ConstraintKind


@pytest.fixture(scope="module")
def real_engine():
    options = EngineOptions(context_tokens=256, batch_tokens=64)
    engine = LlamaCppEngine(find_default_model(), name="real", options=options)
    yield engine
    engine.close()


@pytest.fixture(params=["scripted", "llama.cpp"])
def engine(request):
    made = ScriptedEngine("hello") if request.param == "scripted" else request.getfixturevalue("real_engine")
    made.truncate(0)
    return made


def test_text_survives_tokenization(engine):
    text = "Grüße, 世界! 😀"
    tokens = engine.tokenize(text, add_special=False, parse_special=False)
    assert engine.detokenize(tokens, with_special=False).decode() == text
    assert b"".join(engine.vocabulary.piece(token) for token in tokens).decode() == text


def test_unknown_tokens_give_nothing(engine):
    assert engine.detokenize([-1, 10**8], with_special=True) == b""


def test_decode_gives_a_row_of_its_own_for_the_last_token(engine):
    tokens = engine.tokenize("The capital of France is", add_special=False, parse_special=False)
    first = engine.decode(tokens, 0)
    kept = first.copy()
    engine.decode([int(np.argmax(first))], len(tokens))
    assert first.ndim == 1
    assert np.isfinite(first).all()
    assert np.array_equal(first, kept)


def test_a_truncated_sequence_goes_on_as_if_the_rest_had_never_been(engine):
    tokens = engine.tokenize("one two three", add_special=False, parse_special=False)
    before = engine.decode(tokens, 0)
    engine.decode(tokens[:1], len(tokens))
    engine.truncate(len(tokens) - 1)
    again = engine.decode(tokens[-1:], len(tokens) - 1)
    assert int(np.argmax(before)) == int(np.argmax(again))


def test_end_tokens_have_no_text(engine):
    assert engine.vocabulary.end_tokens
    assert all(engine.vocabulary.piece(token) == b"" for token in engine.vocabulary.end_tokens)


def test_control_texts_are_found_so_that_messages_cannot_forge_them(real_engine):
    assert {"<|im_start|>", "<|im_end|>"} <= set(real_engine.vocabulary.control_texts)
    (end,) = real_engine.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert end in real_engine.vocabulary.end_tokens
    assert end not in real_engine.tokenize("<|im_end|>", add_special=False, parse_special=False)


def test_a_real_decode_says_what_the_model_knows(real_engine):
    real_engine.truncate(0)
    tokens = real_engine.tokenize("The capital of France is", add_special=False, parse_special=False)
    best = int(np.argmax(real_engine.decode(tokens, 0)))
    assert real_engine.vocabulary.piece(best) == b" Paris"


def test_masks_allow_only_what_the_schema_derives(real_engine):
    compiler = LlguidanceCompiler(real_engine.vocab)
    matcher = compiler.start(Constraint(ConstraintKind.SCHEMA, '{"enum":["yes","no"]}'))
    logits = np.zeros(real_engine.vocabulary.size, dtype=np.float32)
    matcher.mask(logits)
    pieces = {real_engine.vocabulary.piece(int(token)) for token in np.flatnonzero(np.isfinite(logits))}
    assert pieces
    assert all(b'"yes"'.startswith(piece) or b'"no"'.startswith(piece) for piece in pieces)


def test_a_chat_template_that_reaches_outside_is_stopped_by_its_sandbox():
    template = JinjaChatTemplate("{{ ''.__class__.__mro__ }}", bos_token="", eos_token="")
    with pytest.raises(Exception, match=r"unsafe|refuses"):
        template.render([], [])
    with pytest.raises(PreconditionFailed) as missing:
        JinjaChatTemplate("", bos_token="", eos_token="")
    assert missing.value.code is ErrorCode.CONFIG_NO_ENGINE
