import pytest
from pydantic import SecretStr

from pagantic_common.domain.errors import InvalidRequest
from services.context.settings import ContextSettings

URL = "postgresql://me:hunter2@db/collections"


def test_the_password_of_the_database_is_not_in_what_settings_show():
    settings = ContextSettings(store_url=SecretStr(URL))
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.read_database_url() == URL


def test_the_url_of_the_database_is_read_from_a_file_which_wins(tmp_path):
    file = tmp_path / "url"
    file.write_text(f"{URL}\nanother line\n")
    settings = ContextSettings(store_url=SecretStr("sqlite:///other"), store_url_file=file)
    assert settings.read_database_url() == URL
    assert "hunter2" not in repr(settings)


def test_a_file_that_cannot_be_read_is_named_without_its_content(tmp_path):
    file = tmp_path / "url"
    file.write_bytes(b"\xff\xfehunter2")
    for path in (tmp_path / "missing", file):
        with pytest.raises(InvalidRequest, match="STORE_URL_FILE") as caught:
            ContextSettings(store_url_file=path).read_database_url()
        assert "hunter2" not in str(caught.value)


def test_without_a_url_the_database_is_a_file_of_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGANTIC_CONTEXT_STORE_URL_FILE", "")
    assert ContextSettings(data_folder=tmp_path).read_database_url() == f"sqlite:///{tmp_path / 'context.sqlite3'}"
