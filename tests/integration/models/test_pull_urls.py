"""Models at URLs and of this machine: only allowed hosts, only over TLS, only with an expected hash."""

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PermissionDenied, PreconditionFailed
from tests.support.model_hub import ModelHub
from tests.support.sample_models import model_bytes, sha256_hex

CONTENT = model_bytes()
HASH = sha256_hex(CONTENT)
HERE = "127.0.0.1"


@pytest.fixture
def url(encrypted):
    encrypted.files["a/model.gguf"] = CONTENT
    return f"{encrypted.url}/storage/a/model.gguf?secret=1"


def test_a_url_on_an_allowed_host_is_pulled_and_continues(url, encrypted, pull, folder):
    encrypted.cuts = [5000]
    model, _ = pull(url, sha256=HASH, hosts="other.example, 127.0.0.1")
    assert folder.file_of("model").read_bytes() == CONTENT
    assert model.source == url.partition("?")[0]
    assert encrypted.sent_bytes() == [0, 5000]


@pytest.mark.parametrize("hosts", ["", "other.example"])
def test_a_host_that_is_not_allowed_is_never_asked(url, encrypted, pull, hosts):
    with pytest.raises(PermissionDenied, match="PAGANTIC_MODELS_HOSTS") as refused:
        pull(url, sha256=HASH, hosts=hosts)
    assert refused.value.code is ErrorCode.CONFIG_SOURCE_DENIED
    assert "secret" not in str(refused.value)
    assert encrypted.asked == []


def test_a_redirect_leads_to_allowed_hosts_alone(encrypted, pull):
    with ModelHub().serving() as elsewhere:
        elsewhere.files["o/r/model.gguf"] = encrypted.files["o/r/model.gguf"] = CONTENT
        encrypted.storage = elsewhere.url
        with pytest.raises(PermissionDenied, match="only https://"):
            pull(f"{encrypted.url}/o/r/resolve/main/model.gguf", sha256=HASH, hosts=HERE)
        encrypted.storage = encrypted.url.replace(HERE, "localhost")
        with pytest.raises(PermissionDenied, match="'localhost'"):
            pull(f"{encrypted.url}/o/r/resolve/main/model.gguf", sha256=HASH, hosts=HERE)
        assert elsewhere.asked == []
    assert pull(f"{encrypted.url}/o/r/resolve/main/model.gguf", sha256=HASH, hosts=f"{HERE},localhost")[1]


def test_a_url_needs_an_expected_hash(url, pull):
    with pytest.raises(InvalidRequest, match="--sha256"):
        pull(url, hosts=HERE)


def test_another_content_is_refused(url, pull, folder):
    with pytest.raises(PreconditionFailed) as refused:
        pull(url, sha256="0" * 64, hosts=HERE)
    assert refused.value.code is ErrorCode.CONFIG_MODEL_CORRUPT
    assert folder.models() == []


def test_a_url_without_a_file_is_not_found(encrypted, pull):
    with pytest.raises(NotFound):
        pull(f"{encrypted.url}/storage/no.gguf", sha256=HASH, hosts=HERE)


@pytest.mark.parametrize("reference", ["http://127.0.0.1/m.gguf", "ftp://127.0.0.1/m.gguf", "file:///etc/passwd"])
def test_other_schemes_are_refused(pull, reference):
    with pytest.raises(PermissionDenied, match="only https://"):
        pull(reference, name="m", sha256=HASH, hosts=HERE)


def test_a_file_of_this_machine_is_copied(tmp_path, pull, folder):
    (tmp_path / "own.gguf").write_bytes(CONTENT)
    model, _ = pull(str(tmp_path / "own.gguf"), sha256=HASH)
    (tmp_path / "own.gguf").write_bytes(b"changed")
    assert folder.file_of("own").read_bytes() == CONTENT
    assert model.source == str(tmp_path / "own.gguf")


def test_a_file_that_is_not_there_is_not_found(tmp_path, pull):
    with pytest.raises(NotFound, match="cannot be read"):
        pull(str(tmp_path / "no.gguf"))
