"""What every TextEmbedder promises, held against the scripted one and llama.cpp with encoders and a decoder.

The bundled encoder is held against another implementation too: the golden file has that one's tokens and vectors.
"""

import json
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.models.digest import sha256_of
from pagantic_common.testing.scripted_embedder import ScriptedEmbedder
from services.inference.adapters.conversion import (
    BFLOAT16,
    FLOAT16,
    SIZE_BYTES,
    converted_model,
    describe_embedding_model,
    fastest_conversion,
)
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.embedder import EmbedderOptions, LlamaCppEmbedder
from services.inference.adapters.model_file import describe_model
from services.inference.core.embedding import unit_vectors
from tests.support.tiny_bert import CLS, DIMENSIONS, LAST, MEAN, WINDOW, write_tiny_bert

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "all-MiniLM-L6-v2.json").read_text(encoding="ascii"))[
    "texts"
]
WITH_VECTORS = [text for text in GOLDEN if "vector" in text]
TEXTS = ["red cars", "green", "a blue car", "red", "green cars red blue"]


def load_tiny_bert(folder, pooling=MEAN):
    path = write_tiny_bert(folder / "tiny.gguf", pooling=pooling)
    info = describe_model(path, alias="tiny", context_tokens=4096)
    return LlamaCppEmbedder(path, info, EmbedderOptions(batch_tokens=24, max_texts=4))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    embedder = load_tiny_bert(tmp_path_factory.mktemp("encoder"))
    yield embedder
    embedder.close()


@pytest.fixture(scope="module")
def decoder():
    options = EmbedderOptions(
        context_tokens=128, batch_tokens=64, max_texts=8, pooling=llama_cpp.LLAMA_POOLING_TYPE_MEAN
    )
    embedder = LlamaCppEmbedder(find_default_model(), ModelInfo("decoder", 128), options)
    yield embedder
    embedder.close()


@pytest.fixture(scope="module")
def bundled_file(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield converted_model()


@pytest.fixture(scope="module")
def bundled(bundled_file):
    info = describe_embedding_model(context_tokens=4096)
    embedder = LlamaCppEmbedder(bundled_file, info, EmbedderOptions())
    yield embedder
    embedder.close()


def test_a_text_of_any_length_has_the_same_vector_alone_and_in_company(bundled):
    words = ("red green blue car " * 40).split()
    for count in range(1, 90, 4):
        text = tokens_of(bundled, " ".join(words[:count]))
        filling = [tokens_of(bundled, "a blue car")] * 8
        alone, company = (unit_vectors(bundled.embed(texts))[0] for texts in ([text], [text, *filling]))
        assert alone @ company > 0.9999


@pytest.fixture(params=["scripted", "encoder", "bundled", "decoder"])
def embedder(request):
    return ScriptedEmbedder() if request.param == "scripted" else request.getfixturevalue(request.param)


def tokens_of(embedder, text):
    return embedder.tokenize(text, add_special=True, parse_special=False)


def test_a_text_has_the_same_vector_alone_and_in_company(embedder):
    texts = [tokens_of(embedder, text) for text in TEXTS][: embedder.max_batch_texts]
    while sum(map(len, texts)) > embedder.max_batch_tokens:
        texts.pop()
    together = unit_vectors(embedder.embed(texts))
    alone = unit_vectors(np.concatenate([embedder.embed([text]) for text in texts]))
    assert len(texts) > 1
    assert together == pytest.approx(alone, abs=0.02)
    assert (together @ together.T < 0.9999)[~np.eye(len(texts), dtype=bool)].all()


def test_vectors_outlive_the_next_call(embedder):
    first = embedder.embed([tokens_of(embedder, "red")])
    kept = first.copy()
    embedder.embed([tokens_of(embedder, "green cars")])
    assert (first == kept).all()


def test_a_text_may_fill_the_context_window(embedder):
    tokens = tokens_of(embedder, "red green blue")
    filled = (tokens * embedder.model.context_window)[: embedder.model.context_window]
    assert len(filled) > embedder.max_batch_tokens
    assert np.isfinite(embedder.embed([filled])).all()


def test_a_batch_may_have_as_many_texts_and_tokens_as_it_says(embedder):
    size = embedder.max_batch_tokens // embedder.max_batch_texts
    texts = [(tokens_of(embedder, "red green blue car cars") * size)[:size]] * embedder.max_batch_texts
    vectors = unit_vectors(embedder.embed(texts))
    assert len(vectors) == embedder.max_batch_texts
    assert vectors == pytest.approx(np.tile(vectors[0], (len(vectors), 1)), abs=0.01)


def test_an_encoder_gives_an_empty_text_its_special_tokens(encoder):
    assert len(tokens_of(encoder, "")) == 2
    assert encoder.embed([tokens_of(encoder, "")]).shape == (1, DIMENSIONS)
    assert encoder.detokenize(tokens_of(encoder, "red"), with_special=False).strip() == b"red"


@pytest.mark.parametrize(("pooling", "word"), [(MEAN, "mean"), (CLS, "cls"), (LAST, "last")])
def test_pooling_is_the_models_own(tmp_path, pooling, word):
    embedder = load_tiny_bert(tmp_path, pooling)
    try:
        assert embedder.pooling == word
        assert embedder.model.capabilities == ("embed",)
        assert embedder.model.context_window == WINDOW
    finally:
        embedder.close()


@pytest.mark.parametrize(("pooling", "word"), [(None, "names no pooling"), (0, "no pooling")])
def test_a_file_that_makes_no_embeddings_is_refused_with_the_reason(tmp_path, pooling, word):
    path = write_tiny_bert(tmp_path / "tiny.gguf", pooling=pooling)
    with pytest.raises(PreconditionFailed, match=word) as refused:
        describe_model(path, alias="tiny", context_tokens=64)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    with pytest.raises(PreconditionFailed, match="none of mean, cls and last"):
        LlamaCppEmbedder(path, ModelInfo("tiny", WINDOW), EmbedderOptions())


def test_the_bundled_model_is_what_it_is_described_as(bundled_file, bundled):
    found = describe_model(bundled_file, alias=bundled.model.name, context_tokens=4096)
    assert found == describe_embedding_model(context_tokens=4096) == bundled.model
    assert describe_embedding_model(context_tokens=100).context_window == 100
    assert bundled.pooling == "mean"
    assert (sha256_of(bundled_file), bundled_file.stat().st_size) == (fastest_conversion().sha256, SIZE_BYTES)


@pytest.mark.parametrize(("conversion", "least"), [(FLOAT16, 0.99999), (BFLOAT16, 0.9999)])
def test_every_conversion_agrees_with_another_implementation(tmp_path, monkeypatch, conversion, least):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = converted_model(conversion)
    assert path.stat().st_size == SIZE_BYTES
    embedder = LlamaCppEmbedder(path, describe_embedding_model(context_tokens=4096), EmbedderOptions())
    try:
        vectors = unit_vectors(
            np.concatenate([embedder.embed([tokens_of(embedder, golden["text"])]) for golden in WITH_VECTORS])
        )
    finally:
        embedder.close()
    cosines = (vectors * np.array([golden["vector"] for golden in WITH_VECTORS])).sum(axis=1)
    assert cosines.min() > least


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["text"][:20])
def test_text_of_any_kind_has_the_tokens_of_another_implementation(bundled, golden):
    assert tokens_of(bundled, golden["text"]) == golden["tokens"]


def test_special_tokens_that_a_text_spells_are_plain_characters(bundled):
    tokens = bundled.tokenize("[CLS] [SEP] [UNK]", add_special=False, parse_special=False)
    assert bundled.detokenize(tokens, with_special=True).split() == b"[ cls ] [ sep ] [ unk ]".split()


@pytest.mark.parametrize("text", ["x" * 10_000, "\U00010330" * 4_000, "\ud55c" * 5_000, "a\u0301\u0323" * 3_000])
def test_a_word_without_an_end_has_tokens(bundled, text):
    tokens = bundled.tokenize(text, add_special=False, parse_special=False)
    assert 1 <= len(tokens) <= len(text.encode())
