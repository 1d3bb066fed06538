"""A recurrent model, whose sequences can neither be cut nor share a part: it is refused."""

import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from tests.support.tiny_mamba import write_tiny_mamba


def test_a_recurrent_model_is_refused_with_a_next_step(tmp_path):
    path = write_tiny_mamba(tmp_path / "mamba.gguf")
    with pytest.raises(PreconditionFailed, match=r"recurrent or hybrid model.*REMOTES") as refused:
        LlamaCppEngine(path, ModelInfo("tiny", 64), EngineOptions(context_tokens=64, kv_tokens=64, threads=1))
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
