"""Models of a hub, by the real huggingface_hub: interrupted at any byte, refused, missing, corrupt, without room."""

import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pulling.pull import ATTEMPTS, MARGIN_BYTES, Pull
from gateway.pulling.references import source_of
from pagantic_common.domain.errors import (
    Conflict,
    ErrorCode,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import ModelSettings
from tests.support.model_hub import COMMIT, ModelHub
from tests.support.sample_models import model_bytes, sha256_hex

NAME = "owner/repo/tiny.gguf"
REFERENCE = f"hf:{NAME}"
CONTENT = model_bytes()


@pytest.fixture
def served(hub):
    hub.files[NAME] = CONTENT
    return hub


def test_a_model_is_pulled_with_the_hash_and_the_commit_of_the_hub(served, pull, folder):
    model, is_new = pull(REFERENCE, hub_endpoint=served.url)
    assert is_new
    assert folder.file_of("tiny").read_bytes() == CONTENT
    assert (model.name, model.source) == ("tiny", f"{REFERENCE}@{COMMIT}")
    assert (model.sha256, model.size_bytes) == (sha256_hex(CONTENT), len(CONTENT))
    assert (model.context_tokens, model.license) == (4096, "apache-2.0")
    assert folder.find("tiny") == model
    assert pull(REFERENCE, hub_endpoint=served.url) == (model, False)
    assert served.sent_bytes() == [0]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, len(CONTENT) - 1), min_size=1, max_size=6))
def test_a_pull_that_breaks_off_at_any_byte_continues_there(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("models")
    with ModelHub().serving() as hub:
        hub.files[NAME] = CONTENT
        hub.cuts = list(cuts)
        folder = ModelFolder(path)
        source = source_of(REFERENCE, ModelSettings(hub_endpoint=hub.url), 5.0)
        while not folder.models():
            with suppress(Unavailable):  # where several answers in a row bring nothing
                Pull(source, folder, wait_s=5, on_progress=lambda *_: None, retry_s=0).run()
        starts = hub.sent_bytes()
    assert folder.file_of("tiny").read_bytes() == CONTENT
    expected = [0]
    for cut in cuts:
        if expected[-1] + cut < len(CONTENT):
            expected.append(expected[-1] + cut)
    assert starts == expected[: len(starts)]


def test_a_server_that_breaks_off_each_time_fails_and_what_has_arrived_is_kept(served, pull, folder):
    served.cuts = [1000] + [0] * ATTEMPTS
    with pytest.raises(Unavailable):
        pull(REFERENCE, hub_endpoint=served.url)
    assert folder.unfinished_bytes() == 1000
    pull(REFERENCE, hub_endpoint=served.url)
    assert served.sent_bytes() == [0] + [1000] * (ATTEMPTS + 1)
    assert folder.unfinished_bytes() == 0


def test_a_server_without_ranges_sends_all_of_it_again(served, pull, folder):
    served.has_ranges = False
    served.cuts = [1000]
    pull(REFERENCE, hub_endpoint=served.url)
    assert folder.file_of("tiny").read_bytes() == CONTENT


def test_a_file_with_another_hash_never_gets_a_name(served, pull, folder):
    served.hashes[NAME] = "0" * 64
    with pytest.raises(PreconditionFailed, match="0000 is expected") as refused:
        pull(REFERENCE, hub_endpoint=served.url)
    assert refused.value.code is ErrorCode.CONFIG_MODEL_CORRUPT
    assert folder.models() == []
    assert folder.unfinished_bytes() == 0


def test_the_hash_of_the_user_is_compared_before_anything_is_sent(served, pull):
    with pytest.raises(PreconditionFailed, match="--sha256 expects"):
        pull(REFERENCE, sha256="1" * 64, hub_endpoint=served.url)
    assert served.sent_bytes() == []


def test_a_hub_that_knows_no_sha256_needs_that_of_the_user(served, pull):
    served.states_hash = False
    with pytest.raises(InvalidRequest, match="--sha256"):
        pull(REFERENCE, hub_endpoint=served.url)
    assert pull(REFERENCE, sha256=sha256_hex(CONTENT).upper(), hub_endpoint=served.url)[1]


def test_a_source_that_sends_more_than_it_offers_is_left_off(served, pull, folder):
    served.files[NAME] = model_bytes(16_000)
    served.sizes[NAME] = 1000
    with pytest.raises(PreconditionFailed) as refused:
        pull(REFERENCE, hub_endpoint=served.url)
    assert refused.value.code is ErrorCode.CONFIG_MODEL_CORRUPT
    assert int(re.search(r"and (\d+) bytes", str(refused.value))[1]) < len(served.files[NAME]) / 4
    assert folder.unfinished_bytes() == 0


def test_a_file_that_is_no_model_is_refused(served, pull, folder):
    served.files[NAME] = b"<html>not a model</html>"
    with pytest.raises(PreconditionFailed, match="a GGUF file") as refused:
        pull(REFERENCE, hub_endpoint=served.url)
    assert refused.value.code is ErrorCode.CONFIG_MODEL_CORRUPT
    assert folder.models() == []


@pytest.mark.parametrize("reference", ["hf:owner/repo/other.gguf", f"{REFERENCE}@no-such", "hf:no/such/tiny.gguf"])
def test_what_the_hub_does_not_have_is_not_found(served, pull, reference):
    with pytest.raises(NotFound) as refused:
        pull(reference, hub_endpoint=served.url)
    assert refused.value.code is ErrorCode.CONFIG_MODEL_NOT_FOUND


@pytest.mark.parametrize("form", ["owner", "owner/repo", "owner/repo/", "o/r/../../x.gguf", "a/b/c@"])
def test_another_form_is_refused(pull, form):
    with pytest.raises(InvalidRequest, match="hf:owner/repo/file"):
        pull(f"hf:{form}")


def test_a_gated_model_needs_a_token_which_storage_elsewhere_never_sees(served, pull, monkeypatch):
    served.gated.add("owner/repo")
    with pytest.raises(PermissionDenied, match="401") as refused:
        pull(REFERENCE, hub_endpoint=served.url)
    assert refused.value.code is ErrorCode.CONFIG_SOURCE_DENIED
    monkeypatch.setenv("HF_TOKEN", served.token)
    with ModelHub().serving() as storage:
        storage.files[NAME] = CONTENT
        served.storage = storage.url
        assert pull(REFERENCE, hub_endpoint=served.url)[1]
        assert storage.tokens == [None]


def test_a_hub_that_cannot_be_reached_is_unavailable(pull):
    with pytest.raises(Unavailable) as refused:
        pull(REFERENCE, hub_endpoint="http://127.0.0.1:1")
    assert refused.value.code is ErrorCode.CONFIG_SOURCE_UNAVAILABLE
    assert refused.value.failure.retryable


def test_a_silent_server_ends_the_pull(served, pull):
    served.is_silent = True
    with pytest.raises(Unavailable):
        pull(REFERENCE, hub_endpoint=served.url, silence_s=0.2)


def test_a_disk_without_room_is_noticed_before_anything_is_sent(served, pull):
    with pytest.raises(PreconditionFailed, match="MB left") as refused:
        pull(REFERENCE, hub_endpoint=served.url, free_bytes=MARGIN_BYTES + len(CONTENT) - 1)
    assert refused.value.code is ErrorCode.CONFIG_NO_SPACE
    assert served.sent_bytes() == []
    assert pull(REFERENCE, hub_endpoint=served.url, free_bytes=MARGIN_BYTES + len(CONTENT))[1]


def test_the_same_content_under_another_name_is_copied_here(served, pull, folder):
    pull(REFERENCE, hub_endpoint=served.url)
    model, is_new = pull(REFERENCE, "other", hub_endpoint=served.url)
    assert is_new
    assert folder.file_of("other").read_bytes() == CONTENT
    assert model.name == "other"
    assert served.sent_bytes() == [0]


def test_another_content_does_not_take_a_name(served, pull, folder):
    pull(REFERENCE, hub_endpoint=served.url)
    served.files[NAME] = model_bytes(seed=2)
    with pytest.raises(Conflict, match="--as"):
        pull(REFERENCE, hub_endpoint=served.url)
    assert folder.file_of("tiny").read_bytes() == CONTENT
