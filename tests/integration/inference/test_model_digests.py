"""Model files whose SHA-256 the operator named."""

import hashlib

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.adapters import model_file
from services.inference.adapters.conversion import (
    BFLOAT16,
    FLOAT16,
    SIZE_BYTES,
    converted_model,
    describe_embedding_model,
    fastest_conversion,
)
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.model_file import check_digest, describe_model, identity_of, parts_of
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.text_generation import AllWorkers

OTHER = "0" * 64


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_named_file_is_taken_in_any_case(file):
    check_digest(file, alias="m", sha256=digest_of(file))
    check_digest(file, alias="m", sha256=digest_of(file).upper())


def test_another_file_is_refused_and_both_hashes_are_told(file):
    with pytest.raises(PreconditionFailed) as refused:
        check_digest(file, alias="m", sha256=OTHER)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    assert OTHER in str(refused.value)
    assert digest_of(file) in str(refused.value)


def test_a_file_that_is_gone_or_split_is_refused(file):
    with pytest.raises(PreconditionFailed, match="cannot be read"):
        check_digest(file.with_name("none.gguf"), alias="m", sha256=OTHER)
    part = file.rename(file.with_name("model-00001-of-00002.gguf"))
    with pytest.raises(PreconditionFailed, match="split into several files"):
        check_digest(part, alias="m", sha256=digest_of(part))


def loader(path, **settings):
    return ModelLoader(InferenceSettings(port=0, **settings), path, AllWorkers(ThreadWorkers()))


def test_the_engine_does_not_read_a_file_that_is_not_the_named_one(file):
    with pytest.raises(PreconditionFailed, match="MODEL_SHA256"):  # it would not know this file either
        loader(file, model_sha256={"model": OTHER})


def test_a_hash_for_no_model_is_a_mistake(file):
    with pytest.raises(InvalidRequest, match="MODEL_SHA256 names 'modle': the models are 'model'"):
        loader(file, model_sha256={"modle": OTHER})


async def test_a_file_that_was_replaced_since_the_start_is_not_loaded(tmp_path):
    model = find_default_model()
    path = tmp_path / "m.gguf"
    path.symlink_to(model)
    loading = loader(path, model_sha256={"m": digest_of(model)})
    path.unlink()
    path.write_bytes(b"GGUF and more")
    with pytest.raises(PreconditionFailed, match="MODEL_SHA256"):
        await loading.load(loading.specs[0])


def test_a_model_is_described_with_its_size_and_an_identity(tmp_path):
    model = find_default_model()
    info = describe_model(model, alias="m", context_tokens=64)
    assert info.size_bytes == model.stat().st_size
    assert len(info.digest) == 64
    link = tmp_path / "other.gguf"
    link.symlink_to(model)
    assert describe_model(link, alias="other", context_tokens=64).digest == info.digest
    [spec] = loader(model).specs
    assert (spec.info.size_bytes, spec.info.digest) == (info.size_bytes, info.digest)


def test_an_identity_is_that_of_all_parts(tmp_path):
    parts = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(part.name.encode())
    (tmp_path / "m-00001-of-00003.gguf").write_bytes(b"of another model")
    assert parts_of(parts[0]) == parts
    before = identity_of(parts_of(parts[0]))
    parts[1].write_bytes(b"changed")
    assert identity_of(parts_of(parts[0])) != before
    assert parts_of(parts[0].with_name("m.gguf")) == [parts[0].with_name("m.gguf")]


def test_an_identity_reads_the_beginning_and_the_size_of_a_large_file(file, monkeypatch):
    monkeypatch.setattr(model_file, "IDENTIFYING_BYTES", 4)
    before = identity_of([file])
    file.write_bytes(b"GGUF and MORE")
    assert identity_of([file]) == before
    file.write_bytes(b"GGUF and more.")
    assert identity_of([file]) != before


@pytest.mark.parametrize("conversion", [FLOAT16, BFLOAT16])
def test_the_bundled_embedding_model_has_the_identity_of_its_file(tmp_path, monkeypatch, conversion):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert identity_of([converted_model(conversion)]) == conversion.identity
    info = describe_embedding_model(context_tokens=4096)
    assert (info.size_bytes, info.digest) == (SIZE_BYTES, fastest_conversion().identity)
