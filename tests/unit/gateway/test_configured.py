"""Which commands run with a wrong settings file."""

from __future__ import annotations

import pytest

from gateway.cli.serving.configured import check_settings, use_settings


@pytest.fixture
def problems(tmp_path, monkeypatch):
    path = tmp_path / "pagantic.env"
    path.write_text("PAGANTIC_LOGLEVEL=DEBUG\n", encoding="utf-8")
    monkeypatch.setenv("PAGANTIC_SETTINGS_FILE", str(path))
    monkeypatch.setenv("PAGANTIC_LOGLEVEL", "set by the file, and taken back after the test")
    found = use_settings()
    assert found == f"{path}:1: PAGANTIC_LOGLEVEL: no such setting; did you mean PAGANTIC_LOG_LEVEL?"
    return found


@pytest.mark.parametrize("command", ["chat", "up", "serve", None])
def test_a_command_does_not_run_with_a_wrong_setting(problems, command, capsys):
    with pytest.raises(SystemExit) as end:
        check_settings(problems, command)
    assert end.value.code == 3
    assert capsys.readouterr().err == f"configuration error: {problems}\n"


@pytest.mark.parametrize("command", ["init", "doctor", "down", "status"])
def test_a_file_is_mended_and_a_system_is_stopped_with_a_wrong_setting(problems, command):
    check_settings(problems, command)
