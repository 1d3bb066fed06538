"""Weights of 8 bits: converted once, as good as those of the file, and done without where that fails."""

from pathlib import Path

import numpy as np
import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.conversion import eight_bit_file
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llama.weights import uses_amx
from services.inference.core.decoding.sampling import log_probabilities
from services.inference.core.scheduling.batch import Slice
from services.inference.settings import InferenceSettings
from services.inference.wiring import own_model
from services.inference.wiring.own_model import own_weights
from tests.support.needs import AMX, skip_without

TEXT = "A lighthouse keeper writes a letter to the harbour master about the storm of last night."


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def processor_without_amx(monkeypatch):
    monkeypatch.setattr(own_model, "uses_amx", lambda: False)


def weights(path=None, **settings):
    return own_weights(InferenceSettings(**settings), path or find_default_model())


def predictions(path):
    engine = LlamaCppEngine(
        path, ModelInfo("m", 128), EngineOptions(context_tokens=128, kv_tokens=128, max_sequences=1)
    )
    tokens = engine.tokenize(TEXT, add_special=True, parse_special=False)
    rows = engine.decode([Slice(0, tokens, 0, len(tokens))]).copy()
    engine.close()
    return np.array([log_probabilities(row) for row in rows])


def test_converted_weights_predict_what_those_of_the_file_predict():
    given = predictions(find_default_model())
    made = predictions(eight_bit_file(find_default_model()))
    divergences = (np.exp(given) * (given - made)).sum(axis=1)  # Kullback-Leibler, in nats
    assert 0 < divergences.mean() < 0.02


def test_a_model_is_converted_once_and_keeps_its_name(cache):
    made = weights()
    written_ns = made.stat().st_mtime_ns
    assert made.name == find_default_model().name
    assert made.is_relative_to(cache)
    assert weights() == made
    assert made.stat().st_mtime_ns == written_ns
    assert list(made.parent.parent.iterdir()) == [made.parent]


def test_what_an_interrupted_conversion_left_is_replaced():
    made = weights()
    content = made.read_bytes()
    made.unlink()
    made.with_name("partial").write_bytes(b"GGUF and no more")
    assert weights().read_bytes() == content
    assert {file.name for file in made.parent.iterdir()} == {made.name, "lock"}


@pytest.mark.parametrize("settings", [{"weights": "file"}, {"gpu_layers": -1}, {"model_path": "given.gguf"}])
def test_the_file_is_loaded_as_it_is(cache, settings):
    assert weights(**settings) == find_default_model()
    assert not cache.exists()


def test_with_amx_the_bundled_model_is_converted_only_if_asked(cache, monkeypatch):
    monkeypatch.setattr(own_model, "uses_amx", lambda: True)
    assert weights() == find_default_model()
    assert not cache.exists()
    assert weights(weights="q8_0").is_relative_to(cache)


def test_an_engine_that_is_built_on_a_processor_with_amx_uses_it():
    processors = Path("/proc/cpuinfo")
    if not processors.is_file() or " amx_int8 " not in processors.read_text():
        skip_without(AMX)
    assert uses_amx()


def test_without_a_cache_the_bundled_model_runs_with_its_own_weights(cache):
    cache.write_text("not a folder")
    assert weights() == find_default_model()
    with pytest.raises(PreconditionFailed, match="XDG_CACHE_HOME") as refused:
        weights(weights="q8_0")
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_a_file_that_cannot_be_converted_is_refused_with_the_next_step(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and more")
    with pytest.raises(PreconditionFailed, match="PAGANTIC_INFERENCE_WEIGHTS to file"):
        weights(broken, weights="q8_0", model_path=str(broken))
