"""A misspelt setting is refused with the nearest real one; what services share is set once."""

from __future__ import annotations

import os

import pytest

from deploy.local.areas import ConfigurationError, read_areas
from deploy.local.known_settings import check_names, check_values
from gateway.mcp.settings import McpSettings
from pagantic_common.settings import load_settings
from services.context.settings import ContextSettings
from services.inference.settings import InferenceSettings
from services.tools.settings import ToolsSettings


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in ("PAGANTIC_LOG_LEVEL", "PAGANTIC_TOOLS_LOG_LEVEL", "PAGANTIC_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PAGANTIC_INFERENCE_CONTEXT_TOKEN", "PAGANTIC_INFERENCE_CONTEXT_TOKENS"),
        ("PAGANTIC_CONTEXT_TOKENS", "PAGANTIC_INFERENCE_CONTEXT_TOKENS"),
        ("PAGANTIC_MODEL_PATH", "PAGANTIC_INFERENCE_MODEL_PATH"),
        ("PAGANTIC_LOGLEVEL", "PAGANTIC_LOG_LEVEL"),
        ("PAGANTIC_STAT", "PAGANTIC_STATE"),
        ("pagantic_tools_prot", "PAGANTIC_TOOLS_PORT"),
    ],
)
def test_up_refuses_a_misspelt_setting_with_the_nearest_real_one(variable, meant):
    with pytest.raises(ConfigurationError, match=f"{variable}: no such setting; did you mean {meant}"):
        check_names({variable: "1", "HOME": "/"})


@pytest.mark.parametrize(
    "variable",
    ["PAGANTIC_MAX_STREAMS_PER_CONNECTION", "PAGANTIC_INFERENCE_MAX_PRIORITY", "PAGANTIC_MCP_SESSION_IDLE_S"],
)
def test_up_refuses_a_setting_that_earlier_versions_had(variable):
    with pytest.raises(ConfigurationError, match=f"{variable}: no such setting"):
        check_names({variable: "1"})


def test_settings_of_services_commands_and_tests_are_known():
    check_names(
        {
            "PAGANTIC_STATE": "s",
            "PAGANTIC_TOOLS_ADDRESS": "a",
            "PAGANTIC_API_KEY": "k",
            "PAGANTIC_API_KEY_FILE": "f",
            "PAGANTIC_PLAINTEXT_KEY": "1",
            "PAGANTIC_TEST_LIMIT_S": "1",
            "PAGANTIC_ORCHESTRATOR_PRICES": "{}",
            "PAGANTIC_DRAIN_S": "1",
            "pagantic_tools_port": "1",
        }
    )


@pytest.mark.parametrize("variable", ["PAGANTIC_TOOLS_PROT", "PAGANTIC_LOG_LEVL", "PAGANTIC_PORT"])
def test_a_service_refuses_what_is_misspelt_for_it_or_for_all(monkeypatch, capsys, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(SystemExit) as end:
        load_settings(ToolsSettings)
    assert end.value.code == 78
    assert f"configuration error: {variable}: no such setting; did you mean PAGANTIC_" in capsys.readouterr().err


def test_a_service_leaves_the_settings_of_others_to_them(monkeypatch):
    monkeypatch.setenv("PAGANTIC_RERANK_PROT", "1")
    monkeypatch.setenv("PAGANTIC_MCP_PROT", "1")
    load_settings(ToolsSettings)


def test_the_mcp_server_refuses_what_is_misspelt_for_it_and_leaves_the_rest(monkeypatch, capsys):
    monkeypatch.setenv("PAGANTIC_RERANK_PROT", "1")
    load_settings(McpSettings)
    monkeypatch.setenv("PAGANTIC_MCP_PROT", "1")
    with pytest.raises(SystemExit):
        load_settings(McpSettings)
    assert "PAGANTIC_MCP_PROT: no such setting; did you mean PAGANTIC_MCP_PORT" in capsys.readouterr().err


def test_what_every_service_shares_is_set_once_and_a_services_own_wins(monkeypatch):
    monkeypatch.setenv("PAGANTIC_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("PAGANTIC_CONNECT_PATIENCE_S", "3")
    monkeypatch.setenv("PAGANTIC_TOOLS_LOG_LEVEL", "ERROR")
    assert load_settings(ToolsSettings).log_level == "ERROR"
    context = load_settings(ContextSettings)
    assert (context.log_level, context.connect_patience_s) == ("DEBUG", 3)


def test_a_setting_that_belongs_to_one_service_is_not_shared(monkeypatch):
    monkeypatch.setenv("PAGANTIC_GPU_LAYERS", "1")
    with pytest.raises(SystemExit):
        load_settings(InferenceSettings)


def test_a_wrong_value_is_named_by_the_variable_that_has_it(monkeypatch, capsys):
    monkeypatch.setenv("PAGANTIC_LOG_LEVEL", "verbose")
    with pytest.raises(SystemExit):
        load_settings(ToolsSettings)
    assert "configuration error: PAGANTIC_LOG_LEVEL: " in capsys.readouterr().err


def test_a_wrong_value_of_a_union_names_the_setting(monkeypatch, capsys):
    monkeypatch.setenv("PAGANTIC_INFERENCE_THREADS", "0")
    with pytest.raises(SystemExit):
        load_settings(InferenceSettings)
    assert "PAGANTIC_INFERENCE_THREADS: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("PAGANTIC_INFERENCE_THREADS", "many", "PAGANTIC_INFERENCE_THREADS: "),
        ("PAGANTIC_CONTEXT_DRAIN_S", "never", "PAGANTIC_CONTEXT_DRAIN_S: "),
        ("PAGANTIC_SERVE_HTTP", "maybe", "PAGANTIC_SERVE_HTTP is 'maybe': it must be on or off"),
        ("PAGANTIC_TOOLS_PORT", "x", "PAGANTIC_TOOLS_PORT is 'x': it must be a number"),
        ("PAGANTIC_ORCHESTRATOR_PRICES", "1", "PAGANTIC_ORCHESTRATOR_PRICES: "),
    ],
)
def test_up_refuses_a_wrong_value_of_any_program_that_it_would_start(variable, value, problem):
    before = dict(os.environ)
    with pytest.raises(ConfigurationError, match=problem):
        check_values({**before, variable: value})
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PAGANTIC_INFERENCE_MODEL_PATH", "/no/model.gguf"),
        ("PAGANTIC_INFERENCE_MODELS", '{"other": "/no/model.gguf"}'),
        (
            "PAGANTIC_INFERENCE_REMOTES",
            '{"far": {"url": "http://h/v1", "model": "m", "context_window": 64, "api_key_file": "/no/model.gguf"}}',
        ),
        ("PAGANTIC_TOOLS_MCP_SERVERS", "/no/model.gguf"),
        ("PAGANTIC_TOOLS_OPENAPI", "/no/model.gguf"),
        ("PAGANTIC_ORCHESTRATOR_GUARDS_FILE", "/no/model.gguf"),
        ("PAGANTIC_TLS_CA_FILE", "/no/model.gguf"),
    ],
)
def test_up_names_the_setting_of_a_file_that_is_not_there(variable, value):
    with pytest.raises(ConfigurationError) as refused:
        check_values({variable: value})
    assert str(refused.value) == f"configuration error: {variable}: there is no file '/no/model.gguf'"


def test_up_takes_the_files_that_are_there_and_no_model(tmp_path):
    file = tmp_path / "m.gguf"
    file.touch()
    check_values({"PAGANTIC_INFERENCE_MODEL_PATH": "none", "PAGANTIC_INFERENCE_EMBEDDING_MODEL": "bundled"})
    check_values({"PAGANTIC_INFERENCE_MODEL_PATH": str(file), "PAGANTIC_TOOLS_MCP_SERVERS": str(file)})


def test_up_makes_the_keys_that_a_setting_asks_for_so_their_absence_is_no_wrong_value(tmp_path):
    key = tmp_path / "key"
    key.write_text("pag_x")
    check_values({"PAGANTIC_ORCHESTRATOR_AUTH": "keys", "PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE": str(key)})


def test_one_host_is_set_for_every_service():
    areas = read_areas({"PAGANTIC_HOST": "127.0.0.8", "PAGANTIC_TOOLS_HOST": "127.0.0.9"})
    assert {area.host for area in areas} == {"127.0.0.8", "127.0.0.9"}
