"""The bundled embedding model: converted when first used, remade when damaged, and served after all other models."""

import os
import subprocess
import sys
from contextlib import asynccontextmanager

import numpy as np
import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.models.digest import sha256_of
from pagantic_common.rpc.call import call_unary
from pagantic_common.testing.server import serving
from services.inference.adapters import conversion
from services.inference.adapters.conversion import (
    ALIAS,
    SIZE_BYTES,
    converted_model,
    fastest_conversion,
)
from services.inference.adapters.default_model import BundledFile, find_default_model
from services.inference.settings import InferenceSettings
from services.inference.wiring.service import open_app
from tests.support.tiny_bert import write_tiny_bert

CONVERT = "from services.inference.adapters.conversion import converted_model; print(converted_model())"
MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pagantic" / "models"


@asynccontextmanager
async def service(default=None, **settings):
    settings = InferenceSettings(self_check=False, tuning=False, weights="file", **settings)
    path = default or find_default_model()
    async with open_app(settings, path) as registrations, serving(registrations) as (channel, _):
        yield rpc.InferenceServiceStub(channel)


async def embed(stub, *texts, model=""):
    return await call_unary("inference", stub.Embed, pb.EmbedRequest(model=model, texts=texts), 30.0)


async def aliases(stub):
    listed = await call_unary("inference", stub.ListModels, pb.ListModelsRequest())
    return {model.name: list(model.capabilities) for model in listed.models}


async def loaded(stub):
    engine = await call_unary("inference", stub.DescribeEngine, pb.DescribeEngineRequest())
    return list(engine.loaded_models)


async def test_a_fresh_installation_embeds_and_converts_nothing_before(cache):
    async with service() as stub:
        found = await aliases(stub)
        assert list(found)[-1] == ALIAS
        assert found[ALIAS] == ["embed"]
        assert not cache.exists()
        reply = await embed(stub, "a cat sits on a mat", "a kitten rests on a rug", "stock prices fell today")
        cat, kitten, stock = (np.array(embedding.values) for embedding in reply.embeddings)
        assert cat @ kitten > 0.5
        assert cat @ stock < 0.2
        assert reply.usage.context_window == 512
        (made,) = cache.iterdir()
        assert sha256_of(made) == fastest_conversion().sha256


async def test_tokens_of_a_thousand_texts_are_counted_without_special_tokens():
    texts = [f"piece {number % 100} of a document, split by its tokens" for number in range(1000)]
    async with service() as stub:
        request = pb.CountTokensRequest(model=ALIAS, texts=[*texts, "", "Straße"])
        counted = await call_unary("inference", stub.CountTokens, request, 30.0)
        assert list(counted.text_tokens) == [11] * 1000 + [0, 2]
        assert counted.context_window == 512
        longest = pb.CountTokensRequest(model=ALIAS, texts=["a", "word " * 4000])
        with pytest.raises(InvalidRequest, match=r"texts\[1\] has 20000 bytes.* at most 16384") as refused:
            await call_unary("inference", stub.CountTokens, longest, 30.0)
        assert refused.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED


async def test_an_embedding_model_of_the_deployment_comes_first(tmp_path):
    own = write_tiny_bert(tmp_path / "own.gguf")
    async with service(models={"own": str(own)}) as stub:
        assert list(await aliases(stub))[1:] == ["own", ALIAS]
        await embed(stub, "red")
        assert await loaded(stub) == [find_default_model().stem, "own"]
        assert len((await embed(stub, "red", model=ALIAS)).embeddings[0].values) == 384


async def test_a_file_of_the_deployment_may_have_its_alias(tmp_path, cache):
    async with service(models={ALIAS: str(write_tiny_bert(tmp_path / "own.gguf"))}) as stub:
        assert len((await embed(stub, "red", model=ALIAS)).embeddings[0].values) == 16
        assert not cache.exists()


async def test_a_deployment_may_leave_it_out():
    async with service(embedding_model="none") as stub:
        assert ALIAS not in await aliases(stub)
        with pytest.raises(InvalidRequest, match="EMBEDDING_MODEL at 'bundled'") as refused:
            await embed(stub, "x", model=ALIAS)
        assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_without_its_package_the_service_starts_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr(conversion, "PACKAGE", "no-package-of-this-name")
    async with service() as stub:
        assert ALIAS not in await aliases(stub)
        for model in ("", ALIAS):
            with pytest.raises(InvalidRequest, match="make setup") as refused:
                await embed(stub, "x", model=model)
            assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_it_counts_for_the_memory_of_all_models(tmp_path):
    own = write_tiny_bert(tmp_path / "own.gguf")
    limit_mib = SIZE_BYTES // MIB  # the tiny model fits only alone
    async with service(own, memory_limit_mib=limit_mib, min_residence_s=0.0) as stub:
        await embed(stub, "red", model=ALIAS)
        assert await loaded(stub) == [ALIAS]
        await embed(stub, "red")
        assert await loaded(stub) == ["own"]


@pytest.mark.parametrize(("kept", "end"), [(SIZE_BYTES // 2, b""), (SIZE_BYTES - 1, b"\xff"), (0, b"")])
def test_a_damaged_file_is_made_again(kept, end):
    path = converted_model()
    path.write_bytes(path.read_bytes()[:kept] + end)
    assert converted_model() == path
    assert sha256_of(path) == fastest_conversion().sha256
    assert list(path.parent.iterdir()) == [path]


def test_a_whole_file_is_kept():
    before = converted_model().stat()
    after = converted_model().stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_processes_that_convert_at_once_end_well(cache):
    running = [
        subprocess.Popen([sys.executable, "-c", CONVERT], env=os.environ, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0].splitlines()[-1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    (made,) = cache.iterdir()
    assert outputs == [str(made)] * 3
    assert sha256_of(made) == fastest_conversion().sha256


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "pagantic").write_text("a file where the folder should be")
    with pytest.raises(PreconditionFailed, match=r"46 MB cannot be written to .*XDG_CACHE_HOME") as refused:
        converted_model()
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_other_weights_are_not_converted(monkeypatch, cache):
    other = BundledFile(conversion.PACKAGE, "model.safetensors", "0" * 64)
    monkeypatch.setattr(conversion, "WEIGHTS", other)
    with pytest.raises(PreconditionFailed, match=r"'model.safetensors' in package .* not the expected one") as refused:
        converted_model()
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    assert not cache.exists()


def test_a_conversion_with_another_result_leaves_nothing(monkeypatch, cache):
    monkeypatch.setattr(conversion, "HEADS", 6)
    with pytest.raises(PreconditionFailed, match="has the SHA-256"):
        converted_model()
    assert list(cache.iterdir()) == []
