"""The files of a tokenizer, packed for gateways."""

import hashlib
import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from services.inference.vllm import tokenizer_bundle
from services.inference.vllm.tokenizer_bundle import bundle_tokenizer, chunks_of


def test_a_bundle_has_the_files_of_the_tokenizer_alone(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors", "secret.pem"):
        (tmp_path / name).write_text(name)
    bundle = bundle_tokenizer(tmp_path)
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            "tokenizer.json": "tokenizer.json",
            "tokenizer_config.json": "tokenizer_config.json",
        }
    assert bundle_tokenizer(tmp_path) == bundle


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match=r"VLLM_TOKENIZER_FOLDER is .* which has no tokenizer\.json"):
        bundle_tokenizer(tmp_path)


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_bundle, "MAX_FILE_BYTES", 3)
    (tmp_path / "tokenizer.json").write_text("four")
    with pytest.raises(InvalidRequest, match="has 4 bytes, the limit is 3"):
        bundle_tokenizer(tmp_path)


@given(st.one_of(st.binary(min_size=1, max_size=9), st.sampled_from([65535, 65536, 65537, 200_000]).map(bytes)))
def test_chunks_are_the_bundle_and_the_last_one_has_its_digest(bundle):
    *before, last = chunks_of(bundle)
    assert b"".join(chunk.data for chunk in (*before, last)) == bundle
    assert last.sha256 == hashlib.sha256(bundle).hexdigest()
    assert all(chunk.sha256 == "" and len(chunk.data) == 65536 for chunk in before)
