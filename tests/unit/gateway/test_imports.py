"""The client and the commands start fast: heavy packages are imported by the work that needs them."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import pagantic_common.client
from gateway.cli.tree import COMMANDS, load_command

# grpc is not in this list: without it there is no client, and it imports grpc.aio itself.
CLIENT_NEEDS_NONE = {
    "IPython",
    "opentelemetry.sdk",
    "pagantic_common.client.notebook",
    "psutil",
    "pydantic",
    "pydantic_settings",
    "rich",
    "textual",
    "typer",
}
TREE_NEEDS_NONE = {
    "google.protobuf",
    "grpc",
    "opentelemetry",
    "pagantic",
    "psutil",
    "pydantic",
    "pydantic_settings",
    "rich",
    "textual",
}
COMMANDS_NEED_NONE = {
    "gateway.evaluation.running",
    "gateway.http",
    "gateway.mcp",
    "gateway.tui",
    "jinja2",
    "jsonschema_rs",
    "mcp",
    "numpy",
    "openapi_spec_validator",
    "opentelemetry.sdk",
    "pagantic_common.client.notebook",
    "services",
    "smg_grpc_proto",
    "starlette",
    "structlog",
    "textual",
    "uvicorn",
    "yaml",
}
CLIENT = "from pagantic_common.client import AsyncClient, Client, chat_request"
TREE = "import typer.main; from gateway import entry; from gateway.cli.main import app; typer.main.get_command(app)"
EVERY_COMMAND = "from gateway.cli.tree import COMMANDS, load_command; [load_command(name) for name in COMMANDS]"


@pytest.mark.parametrize(
    ("program", "unneeded"), [(CLIENT, CLIENT_NEEDS_NONE), (TREE, TREE_NEEDS_NONE), (EVERY_COMMAND, COMMANDS_NEED_NONE)]
)
def test_a_program_imports_none_of_the_packages_that_it_does_not_use(program, unneeded):
    code = f"{program}\nimport sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert unneeded & set(ast.literal_eval(done.stdout)) == set()


def test_each_name_of_the_client_is_there_and_no_other():
    names = pagantic_common.client.__all__
    assert set(names) <= set(dir(pagantic_common.client))
    assert all(getattr(pagantic_common.client, name).__name__ == name for name in names)
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        _ = pagantic_common.client.Cleint


@pytest.mark.parametrize("name", COMMANDS)
def test_the_tree_has_the_first_sentence_of_a_commands_help(name):
    command = load_command(name)
    assert command.name == name
    assert " ".join(command.help.split()).startswith(COMMANDS[name][1])
