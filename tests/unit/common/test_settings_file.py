"""The settings file: where it is found, what it sets, and what is wrong with it, by line."""

from __future__ import annotations

import pytest

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.settings import load_settings, state_folder
from pagantic_common.storage.settings_file import (
    VARIABLE,
    SettingsFileError,
    find_settings_file,
    origin_of,
    read_settings_file,
    use_settings_file,
)
from services.inference.settings import InferenceSettings


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes the settings file of the working folder, where the user has none."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = tmp_path / "pagantic.env"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems_of(path):
    with pytest.raises(SettingsFileError) as error:
        read_settings_file(path)
    return str(error.value).splitlines()


def test_the_file_that_is_named_comes_before_the_folders_and_that_before_the_users(tmp_path, written):
    users = tmp_path / "config" / "pagantic" / "pagantic.env"
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert find_settings_file(environment, tmp_path) is None
    users.parent.mkdir(parents=True)
    users.write_text("")
    assert find_settings_file(environment, tmp_path) == users
    folders = written("")
    assert find_settings_file(environment, tmp_path) == folders
    assert find_settings_file({**environment, VARIABLE: "other.env"}, tmp_path) == tmp_path / "other.env"
    assert find_settings_file({**environment, VARIABLE: "none"}, tmp_path) is None


def test_a_folder_in_the_place_of_the_file_is_refused_and_not_passed_over(tmp_path):
    (tmp_path / "pagantic.env").mkdir()
    path = find_settings_file({"XDG_CONFIG_HOME": str(tmp_path / "config")}, tmp_path)
    assert problems_of(path) == [f"{tmp_path / 'pagantic.env'}: it cannot be read: is a directory"]


def test_the_environment_wins_and_the_programs_that_are_started_use_the_same_file(written):
    path = written("PAGANTIC_STATE=file\nPAGANTIC_LOG_LEVEL=DEBUG # chatty\nOTHER_KEY='a # \"b'\n")
    environment = {"PAGANTIC_STATE": "shell"}
    use_settings_file(environment)
    assert environment == {
        "PAGANTIC_STATE": "shell",
        "PAGANTIC_LOG_LEVEL": "DEBUG",
        "OTHER_KEY": 'a # "b',
        VARIABLE: str(path),
    }
    assert origin_of("PAGANTIC_LOG_LEVEL", environment) == f"{path}:2: "
    assert origin_of("PAGANTIC_STATE", environment) == ""


def test_a_dollar_sign_is_text(written):
    (setting,) = read_settings_file(written('PAGANTIC_A="${HOME} $x"')).settings
    assert setting.value == "${HOME} $x"


def test_every_wrong_line_is_named(written):
    path = written("# x\n\nPAGANTIC_A=1\n\nPAGNATIC_B=1\nPAGANTIC_C\nfoo bar\nPAGANTIC_A=2\nPAGANTIC_D='1\n")
    assert problems_of(path) == [
        f"{path}:5: PAGNATIC_B: no such setting; did you mean PAGANTIC_B?",
        f"{path}:6: PAGANTIC_C: it has no value: write a = and the value behind it",
        f"{path}:7: it must be NAME=value, with the quotes closed",
        f"{path}:8: PAGANTIC_A: line 3 sets it too",
        f"{path}:9: PAGANTIC_D: it must be NAME=value, with the quotes closed",
    ]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("PROVIDER_KEY='sk-secret", "PROVIDER_KEY: "),
        ('export PROVIDER_KEY = "sk-secret', "PROVIDER_KEY: "),
        ("PROVIDER_KEY sk-secret", "PROVIDER_KEY: "),
        ("JBSECRET3DPEHPK3", ""),
        ("skSecret", ""),
        ("sk-secret", ""),
        ("pag-key=sk-secret", ""),
        ("PROVIDER_KEY='sk-secret\0'", "PROVIDER_KEY: "),
    ],
)
def test_a_wrong_line_is_named_without_what_may_be_a_secret(written, line, name):
    path = written(f"{line}\n")
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:1: {name}it")
    assert "secret" not in problem.lower()


def test_a_setting_in_lower_case_is_refused_with_its_right_name_and_names_of_others_are_as_written(written):
    path = written("pagantic_log_level=DEBUG\nhttp_proxy=a\nHTTP_PROXY=b\n")
    assert problems_of(path) == [f"{path}:1: pagantic_log_level: names are in upper case; write PAGANTIC_LOG_LEVEL"]


def test_the_right_lines_of_a_wrong_file_are_set_and_named_as_origins(written):
    path = written("PAGANTIC_STATE=/srv\nPAGNATIC_B=1\n")
    environment = {}
    with pytest.raises(SettingsFileError):
        use_settings_file(environment)
    assert environment == {"PAGANTIC_STATE": "/srv", VARIABLE: str(path)}
    assert origin_of("PAGANTIC_STATE", environment) == f"{path}:1: "


def test_a_folder_that_was_deleted_has_no_settings_file(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert use_settings_file({"XDG_CONFIG_HOME": str(tmp_path)}) is None


@pytest.mark.parametrize("content", [b"\xff", b"PAGANTIC_A=\0", b"A" * (1024 * 1024 + 1)])
def test_what_is_no_settings_file_is_refused(tmp_path, content):
    path = tmp_path / "pagantic.env"
    path.write_bytes(content)
    assert len(problems_of(path)) == 1


def test_a_file_that_every_user_can_write_is_not_used(written):
    path = written("PAGANTIC_TOOLS_MODULES=evil.py\n")
    path.chmod(0o666)
    assert problems_of(path) == [f"{path}: every user can write it, so it is not used: run `chmod o-w {path}`"]


def test_a_file_that_is_named_and_not_there_is_no_silent_default(tmp_path):
    with pytest.raises(SettingsFileError, match="cannot be read: no such file"):
        use_settings_file({VARIABLE: str(tmp_path / "gone.env")})


def test_the_home_of_nobody_is_a_wrong_value():
    with pytest.raises(SettingsFileError, match="FILE is '~nosuch/x': ~nosuch is the home of no user"):
        use_settings_file({VARIABLE: "~nosuch/x"})
    with pytest.raises(InvalidRequest, match="PAGANTIC_STATE is '~nosuch/x': ~nosuch is the home of no user"):
        state_folder({"PAGANTIC_STATE": "~nosuch/x"})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "PAGANTIC_INFERENCE_PROT=1",
            "PAGANTIC_INFERENCE_PROT: no such setting; did you mean PAGANTIC_INFERENCE_PORT?",
        ),
        ("PAGANTIC_LOG_LEVEL=loud", "PAGANTIC_LOG_LEVEL: "),
        ("PAGANTIC_INFERENCE_THREADS=many", "PAGANTIC_INFERENCE_THREADS: "),
        ("PAGANTIC_INFERENCE_MODELS=x", "PAGANTIC_INFERENCE_MODELS: it must be JSON"),
    ],
)
def test_a_service_names_the_line_of_what_it_refuses(written, monkeypatch, capsys, line, problem):
    path = written(f"# mine\n{line}\n")
    name, _, value = line.partition("=")
    monkeypatch.setenv(name, value)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(SystemExit):
        load_settings(InferenceSettings)
    assert f"configuration error: {path}:2: {problem}" in capsys.readouterr().err
