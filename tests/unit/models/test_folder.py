"""The folder of pulled models: a name stands for a whole file, or for nothing, whoever else works in the folder."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import Aborted, Conflict, ErrorCode, InvalidRequest, NotFound, PreconditionFailed
from pagantic_common.models.folder import ModelFolder, PulledModel, check_name, serving
from pagantic_common.models.resolving import model_file
from tests.support.sample_models import sha256_hex

CONTENT = b"a model"


@pytest.fixture
def folder(tmp_path):
    return ModelFolder(tmp_path / "models")


def manifest(name="m", content=CONTENT):
    return PulledModel(
        name=name, source="s", sha256=sha256_hex(content), size_bytes=len(content), pulled_at=datetime.now(UTC)
    )


def publish(folder, name="m", content=CONTENT):
    with folder.pulling(sha256_hex(content), 0, lambda: None) as partial:
        partial.write_bytes(content)
        folder.publish(partial, manifest(name, content), 0)


def test_a_published_model_is_found_and_listed(folder):
    assert folder.models() == []
    publish(folder, "b:1")
    publish(folder, "a")
    assert [model.name for model in folder.models()] == ["a", "b:1"]
    assert folder.find("b:1").sha256 == sha256_hex(CONTENT)
    assert folder.file_of("b:1").read_bytes() == CONTENT
    assert folder.find_content(sha256_hex(CONTENT)).name == "a"
    assert folder.unfinished_bytes() == 0


def test_what_interrupted_pulls_left_is_deleted_and_running_ones_keep_theirs(folder):
    assert folder.remove_unfinished() == 0
    with folder.pulling("a" * 64, 0, lambda: None) as left:
        left.write_bytes(CONTENT)
        left.with_suffix(".scratch").mkdir()
        (left.with_suffix(".scratch") / "package").write_bytes(b"12345")
    with folder.pulling("b" * 64, 0, lambda: None) as running:
        running.write_bytes(b"123")
        assert folder.remove_unfinished() == len(CONTENT) + 5
        assert running.read_bytes() == b"123"
        assert folder.unfinished_bytes() == 3
    assert folder.remove_unfinished() == 3
    assert folder.unfinished_bytes() == 0


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b'{"name": "m"}', b"\xff" * 10])
def test_a_model_with_a_damaged_manifest_is_not_pulled_and_can_be_pulled_again(folder, damage):
    publish(folder)
    (folder.path / "m.json").write_bytes(damage)
    assert folder.find("m") is None
    assert folder.models() == []
    publish(folder)
    assert folder.find("m") is not None


@pytest.mark.parametrize("lost", ["m.json", "m.gguf"])
def test_half_a_model_is_none(folder, lost):
    publish(folder)
    (folder.path / lost).unlink()
    assert folder.find("m") is None


def test_a_name_is_not_taken_from_another_content(folder):
    publish(folder)
    with pytest.raises(Conflict, match=r"another content.*--as.*`pagantic rm m`"):
        publish(folder, "m", b"another model")
    assert folder.file_of("m").read_bytes() == CONTENT


def test_a_file_that_no_pull_has_made_is_never_replaced(folder):
    folder.path.mkdir()
    folder.file_of("own").write_bytes(b"the user's own")
    with pytest.raises(Conflict, match="no pull has made it"):
        publish(folder, "own")
    assert folder.file_of("own").read_bytes() == b"the user's own"


def test_one_pull_of_a_content_at_a_time(folder):
    waits = []
    with (
        folder.pulling("0" * 64, 0, lambda: None),
        pytest.raises(Aborted, match="another pull"),
        folder.pulling("0" * 64, 0, lambda: waits.append(1)),
    ):
        pass
    assert waits == [1]
    with folder.pulling("0" * 64, 0, lambda: None), folder.pulling("1" * 64, 0, lambda: None):
        pass


def test_a_removed_model_is_gone_with_its_manifest(folder):
    publish(folder)
    assert folder.remove("m", 0).name == "m"
    assert not list(folder.path.glob("m*"))
    with pytest.raises(NotFound, match="there are: none") as refused:
        folder.remove("m", 0)
    assert refused.value.code is ErrorCode.CONFIG_MODEL_NOT_FOUND


def test_a_served_model_is_not_removed(folder):
    publish(folder)
    with serving([folder.file_of("m"), folder.file_of("not there")]), serving([folder.file_of("m")]):
        with pytest.raises(PreconditionFailed, match="a service serves 'm'"):
            folder.remove("m", 0)
        assert folder.find("m") is not None
    folder.remove("m", 0)


def test_a_folder_that_cannot_be_made_is_named_with_its_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(PreconditionFailed, match="PAGANTIC_MODELS_FOLDER"),
        ModelFolder(tmp_path / "file").pulling("0" * 64, 0, lambda: None),
    ):
        pass


@given(st.text(max_size=130))
def test_a_name_that_is_taken_stays_inside_the_folder(name):
    try:
        check_name(name)
    except InvalidRequest:
        return
    folder = ModelFolder(Path("/models"))
    assert folder.file_of(name).parent == folder.path
    assert folder.file_of(name).stem == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", ".hidden", "a" * 128, "m.gguf", "a b", "a\n"])
def test_other_names_are_refused(name, folder):
    with pytest.raises(InvalidRequest):
        check_name(name)
    assert folder.find(name) is None


def test_a_setting_means_a_path_or_a_pulled_model(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("PAGANTIC_MODELS_FOLDER", str(folder.path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="run `pagantic pull smollm2:135m` first"):
        model_file("smollm2:135m")
    with pytest.raises(ValueError, match=r"^`pagantic models` lists what is here, and .* what can be pulled: it"):
        model_file("tiny:1k")
    publish(folder, "tiny:1k")
    assert model_file("tiny:1k") == str(folder.file_of("tiny:1k"))
    assert [model_file(path) for path in ("./m", "/no/m", "m.gguf", "")] == ["./m", "/no/m", "m.gguf", ""]
    with pytest.raises(
        ValueError, match=r"^did you mean tiny:1k\? .* --catalog` what can be pulled: it must be a GGUF"
    ):
        model_file("tiny:1")
    (tmp_path / "tiny:1k").write_text("a file of that name here comes first")
    assert model_file("tiny:1k") == "tiny:1k"
