"""`pagantic init`: its defaults, its options, and what it refuses. Its questions are in the e2e tests."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gateway.cli import main
from gateway.cli.serving.starting.choices import text_of
from pagantic_common.storage.settings_file import read_settings_file


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("PAGANTIC_STATE", "PAGANTIC_MODELS_FOLDER"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return lambda *arguments: CliRunner().invoke(main.app, ["init", *map(str, arguments)])


@pytest.fixture
def ports():
    """Six ports that follow each other, and a seventh; nothing listens on them. Other tests take ports above these."""
    for first in range(12000 + os.getpid() % 400 * 10, 20000, 10):
        try:
            for port in range(first, first + 7):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("there are no free ports")


def written(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["settings"]


def test_a_pipe_is_asked_nothing_and_gets_the_defaults(run, tmp_path, ports):
    assert written(run("--json", "--first-port", ports, "--http-port", ports + 6)) == {
        "PAGANTIC_STATE": str(tmp_path / "pagantic_state"),
        "PAGANTIC_ORCHESTRATOR_PORT": str(ports),
        "PAGANTIC_INFERENCE_PORT": str(ports + 1),
        "PAGANTIC_CONSTRAINT_PORT": str(ports + 2),
        "PAGANTIC_CONTEXT_PORT": str(ports + 3),
        "PAGANTIC_RERANK_PORT": str(ports + 4),
        "PAGANTIC_TOOLS_PORT": str(ports + 5),
        "PAGANTIC_SERVE_HTTP": "on",
        "PAGANTIC_HTTP_PORT": str(ports + 6),
    }
    file = tmp_path / "pagantic.env"
    assert len(read_settings_file(file).settings) == 9
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_is_replaced_by_force_alone(run, tmp_path):
    (tmp_path / "pagantic.env").write_text("mine")
    refused = run("--yes", "--no-http")
    assert refused.exit_code == 2
    assert "--force replaces it" in refused.output
    assert (tmp_path / "pagantic.env").read_text() == "mine"
    assert written(run("--json", "--no-http", "--force"))["PAGANTIC_SERVE_HTTP"] == "off"


def test_other_engines_alone_are_to_be_added_to_the_file(run):
    said = run("--yes", "--no-http", "--model", "none").stdout
    assert "next: add PAGANTIC_INFERENCE_REMOTES and PAGANTIC_INFERENCE_DEFAULT_MODEL" in said
    assert said.index("PAGANTIC_INFERENCE_REMOTES") < said.index("next: pagantic up")


def test_a_key_is_made_once_for_this_user_alone(run, tmp_path):
    settings = written(run("--json", "--no-http", "--key", "--data", tmp_path / "d"))
    key = tmp_path / "d" / "identity" / "admin-key"
    assert settings["PAGANTIC_ORCHESTRATOR_AUTH"] == settings["PAGANTIC_HTTP_AUTH"] == "keys"
    assert settings["PAGANTIC_API_KEY_FILE"] == settings["PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE"] == str(key)
    text = key.read_text()
    assert text.startswith("pag_")
    assert key.stat().st_mode & 0o777 == 0o600
    written(run("--json", "--no-http", "--key", "--data", tmp_path / "d", "--force"))
    assert key.read_text() == text


def test_a_model_is_a_file_or_a_name(run, tmp_path):
    (tmp_path / "mine.gguf").write_bytes(b"GGUF and more")
    for given_model, kept in (
        ("mine.gguf", str(tmp_path / "mine.gguf")),
        ("smollm2:135m", "smollm2:135m"),
        ("none", "none"),
    ):
        settings = written(run("--json", "--no-http", "--force", "--model", given_model))
        assert settings["PAGANTIC_INFERENCE_MODEL_PATH"] == kept
    said = run("--yes", "--no-http", "--force", "--model", "smollm2:135m").stdout
    assert "next: pagantic pull smollm2:135m\n" in said


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--model", "smolm2:135m"), "did you mean smollm2:135m?"),
        (("--model", "./no.gguf"), "no such file or directory"),
        (("--model", "/etc/passwd"), "it is no GGUF file"),
        (("--model", "~nosuch/x.gguf"), "--model '~nosuch/x.gguf': ~nosuch is the home of no user"),
        (("--data", "~nosuch/x"), "--data '~nosuch/x': ~nosuch is the home of no user"),
        (("--address", "localhost:1", "--key-file", "~nosuch/x"), "--key-file '~nosuch/x': ~nosuch is the home"),
        (("--data", "/etc/passwd/x"), "is no folder that this user can write"),
        (("--data", "a%b"), "no %"),
        (("--first-port", "65534"), "must be between 1 and 65535"),
        (("--address", "localhost"), "is no address"),
        (("--address", "localhost:1", "--key"), "--key: with --address no services"),
        (("--key-file", "x"), "--key-file belongs to --address"),
        (("--address", "localhost:1", "--key-file", "x"), "there is no such file"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(run, tmp_path, arguments, problem):
    result = run("--yes", *arguments)
    assert result.exit_code == 2
    assert problem in result.output
    assert not (tmp_path / "pagantic.env").exists()


def test_a_port_in_use_is_refused_with_a_free_one(run, ports):
    with socket.create_server(("127.0.0.1", ports + 2)):
        result = run("--yes", "--no-http", "--first-port", ports)
    assert result.exit_code == 2
    free = re.search(rf"port {ports + 2} is in use; (\d+) would be free", result.output)
    assert int(free[1]) in range(ports + 100, 65535, 100)


@pytest.mark.parametrize("offset", [0, 5])
def test_the_port_of_a_service_is_none_for_http(run, tmp_path, ports, offset):
    result = run("--yes", "--first-port", ports, "--http-port", ports + offset)
    assert result.exit_code == 2
    area = {0: "orchestrator", 5: "tools"}[offset]
    assert f"--http-port {ports + offset}: it is that of the {area} service; " in result.output
    assert not (tmp_path / "pagantic.env").exists()


def test_a_client_of_a_system_elsewhere_needs_its_address_and_its_key(run, tmp_path):
    (tmp_path / "key").write_text("pag_x")
    settings = written(run("--json", "--user", "--address", "https://ai.example", "--key-file", "key"))
    assert settings == {"PAGANTIC_ADDRESS": "https://ai.example", "PAGANTIC_API_KEY_FILE": str(tmp_path / "key")}
    assert (tmp_path / "config" / "pagantic" / "pagantic.env").is_file()


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1))
def test_a_value_is_read_as_it_was_written(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("x") / "pagantic.env"
    path.write_text(text_of({"PAGANTIC_STATE": value}), encoding="utf-8")
    (setting,) = read_settings_file(path).settings
    assert setting.value == value


@pytest.mark.parametrize(
    "value", ["/a", "/my data", "/a$HOME`x`!", "/Ana's data", "/a\\b\\\\n", '/Ana\'s "x" \\', "a\nb"]
)
def test_a_shell_reads_a_value_as_it_was_written(tmp_path, value):
    (tmp_path / "pagantic.env").write_text(text_of({"PAGANTIC_STATE": value}), encoding="utf-8")
    command = ["sh", "-c", '. ./pagantic.env; printf %s "$PAGANTIC_STATE"']
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == value
