import pytest
from pydantic import SecretStr

from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.settings import OrchestratorSettings

URL = "postgresql://me:hunter2@db/journal"


def test_the_journals_password_is_not_in_what_settings_show():
    settings = OrchestratorSettings(journal_url=SecretStr(URL))
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.read_journal_url() == URL


def test_the_journals_url_is_read_from_a_file(tmp_path):
    file = tmp_path / "url"
    file.write_text(f"{URL}\nanother line\n")
    settings = OrchestratorSettings(journal_url_file=file)
    assert settings.read_journal_url() == URL
    assert "hunter2" not in repr(settings)


def test_a_file_that_cannot_be_read_is_named_without_its_content(tmp_path):
    file = tmp_path / "url"
    with pytest.raises(InvalidRequest, match="JOURNAL_URL_FILE"):
        OrchestratorSettings(journal_url_file=file).read_journal_url()
    file.write_bytes(b"\xff\xfehunter2")
    with pytest.raises(InvalidRequest, match="JOURNAL_URL_FILE") as caught:
        OrchestratorSettings(journal_url_file=file).read_journal_url()
    assert "hunter2" not in str(caught.value)
