"""Where state lies, and what a wrong setting says."""

from pathlib import Path

import pytest

from pagantic_common.rpc.process.server import MIN_STREAMS
from pagantic_common.settings import load_settings, state_folder
from services.inference.settings import InferenceSettings


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"PAGANTIC_STATE": "/given", "XDG_STATE_HOME": "/xdg"}, Path("/given")),
        ({"PAGANTIC_STATE": "~/given"}, Path.home() / "given"),
        ({"XDG_STATE_HOME": "/xdg"}, Path("/xdg/pagantic")),
        ({}, Path.home() / ".local" / "state" / "pagantic"),
    ],
)
def test_state_has_one_home_wherever_one_stands(environment, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert state_folder(environment) == folder


def test_a_relative_state_folder_is_of_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert state_folder({"PAGANTIC_STATE": "own"}) == tmp_path / "own"


def test_the_home_folder_is_expanded_in_paths_of_models(monkeypatch):
    monkeypatch.setenv("PAGANTIC_INFERENCE_MODEL_PATH", "~/m.gguf")
    monkeypatch.setenv("PAGANTIC_INFERENCE_MODELS", '{"other": "~/o.gguf"}')
    settings = load_settings(InferenceSettings)
    assert settings.model_path == str(Path.home() / "m.gguf")
    assert settings.models == {"other": str(Path.home() / "o.gguf")}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("THREADS", "0", "PAGANTIC_INFERENCE_THREADS: input should be greater than or equal to 1, not '0' or "),
        ("MODELS", "x=y", "PAGANTIC_INFERENCE_MODELS: it must be JSON"),
    ],
)
def test_a_wrong_setting_is_named_as_it_is_set(name, value, said, monkeypatch, capsys):
    monkeypatch.setenv(f"PAGANTIC_INFERENCE_{name}", value)
    with pytest.raises(SystemExit) as caught:
        load_settings(InferenceSettings)
    assert caught.value.code == 78
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"configuration error: {said}")


@pytest.mark.parametrize(("in_all", "given", "of_one"), [(1024, 0, 512), (100, 0, 50), (1, 0, 1), (100, 100, 100)])
def test_one_host_may_make_half_of_the_calls_unless_it_is_set(in_all, given, of_one):
    settings = InferenceSettings(max_concurrent_rpcs=in_all, max_concurrent_rpcs_per_host=given)
    assert settings.max_calls_per_host == of_one


def test_a_connection_has_streams_for_the_calls_of_a_host_and_the_health_watch():
    assert InferenceSettings().max_calls_per_host < MIN_STREAMS
