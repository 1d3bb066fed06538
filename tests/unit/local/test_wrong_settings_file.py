"""What the commands of the local system do with a settings file that has wrong lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.cli.failures import EXIT_REQUEST
from pagantic_common.settings import EXIT_CONFIG


@pytest.fixture
def run(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGANTIC_")}
    file = tmp_path / "wrong.env"

    def run(text, *arguments, **variables):
        file.write_text(text, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            env=environment
            | {"PAGANTIC_SETTINGS_FILE": str(file), "XDG_STATE_HOME": str(tmp_path / "unused")}
            | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.mark.parametrize("command", ["down", "status"])
def test_a_system_is_shown_and_stopped_with_a_warning(run, tmp_path, command):
    lines = f"PAGANTIC_STATE={tmp_path / 'state'}\nPROVIDER_KEY='sk-1\nPAGANTIC_START_LIMIT_S=x\n"
    done = run(lines, "deploy.local", command)
    assert done.stderr.splitlines() == [
        f"configuration error: {tmp_path / 'wrong.env'}:2: PROVIDER_KEY: it must be NAME=value, with the quotes closed",
        "warning: what could be read of the settings file is used",
    ]
    assert str(tmp_path / "state") in done.stdout


def test_a_start_is_refused(run, tmp_path):
    done = run("PAGNATIC_STATE=x\n", "deploy.local", "up")
    assert done.returncode == EXIT_REQUEST
    assert f"{tmp_path / 'wrong.env'}:1: PAGNATIC_STATE" in done.stderr


def test_every_wrong_setting_ends_a_start_with_the_code_of_a_wrong_configuration(run):
    for line in ("PAGANTIC_LOG_LEVEL=chatty", "PAGANTIC_RERANK_PORT=x", "PAGANTIC_STATE=~nobody-of-this-machine/s"):
        assert run(line, "deploy.local", "up").returncode == EXIT_REQUEST, line
    assert run("PAGANTIC_MODELS_HUB_ENDPOINT=x", "gateway.cli.main", "pull", "x").returncode == EXIT_REQUEST


def test_the_gateway_of_a_supervisor_reads_no_settings_file_again(run):
    done = run("PAGANTIC_HTP_PORT=1\n", "deploy.local.child", "http", "127.0.0.1:1", PAGANTIC_HTTP_PORT="x")
    assert done.returncode == EXIT_CONFIG
    assert "PAGANTIC_HTTP_PORT: " in done.stderr
    assert "PAGANTIC_HTP_PORT" not in done.stderr
