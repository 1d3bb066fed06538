"""Every command: its help, its output for programs, and what it makes of wrong and empty arguments."""

from __future__ import annotations

import pytest
import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.tree import load_command
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving

NOBODY = "127.0.0.1:1"
EXIT_CODES = {*range(10), 130}
# Commands without --json, each with its reason.
WITHOUT_JSON = {
    ("up",): "it prints progress alone; `status --json` prints the result",
    ("down",): "it prints progress alone; `status --json` prints the result",
    ("logs",): "the lines of a log are JSON already, or text if the operator wants it",
    ("run",): "it prints JSON always",
    ("serve",): "it serves until Ctrl-C",
    ("mcp",): "its stdout belongs to the protocol",
    ("sessions", "delete"): "it prints nothing on stdout",
    ("collections", "delete"): "it prints nothing on stdout",
    ("keys", "new"): "it prints one word, the key",
    ("keys", "token"): "it prints one word, the token",
}
SERVING = {("up",), ("serve",), ("mcp",), ("down",)}


def walk(command, path=()):
    """Yield the words and the object of every command that runs; a group that does something alone is one."""
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from walk(inner, (*path, name))
    if not isinstance(command, TyperGroup) or (path and command.invoke_without_command):
        yield path, command


BUILT = typer.main.get_command(app)
BUILT.commands = {name: load_command(name) for name in BUILT.commands}
COMMANDS = dict(walk(BUILT))
each_command = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def parameters_of(path, kind):
    return [parameter for parameter in COMMANDS[path].params if isinstance(parameter, kind)]


@pytest.fixture(scope="module")
def address():
    with serving(ScriptedOrchestrator()) as served:
        yield served


@pytest.fixture
def invoke(address, tmp_path, monkeypatch):
    """Run a command in an empty folder, with the scripted orchestrator and no other service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.testing, "_get_command", lambda _app: BUILT)  # it would build all commands each time
    environment = {
        "PAGANTIC_ADDRESS": address,
        "PAGANTIC_INFERENCE_ADDRESS": NOBODY,
        "PAGANTIC_CONTEXT_ADDRESS": NOBODY,
        "PAGANTIC_STATE": str(tmp_path / "state"),
        "PAGANTIC_MODELS_FOLDER": str(tmp_path / "models"),
    }
    return lambda *arguments: CliRunner().invoke(app, [*arguments], env=environment, input="")


def check_ended(result, arguments):
    """A failure is a line on stderr and a documented exit code."""
    fault = result.exception is not None and not isinstance(result.exception, SystemExit)
    assert not fault, (arguments, result.exc_info)
    assert result.exit_code in EXIT_CODES, arguments
    assert "Traceback" not in result.stderr
    assert result.exit_code == 0 or result.stderr.strip(), arguments


def test_all_commands_are_walked():
    assert len(COMMANDS) > 40
    assert {("chat",), ("models",), ("models", "load"), ("eval", "compare")} <= COMMANDS.keys()


@each_command
def test_help_describes_the_command_and_all_that_it_takes(path):
    command = COMMANDS[path]
    assert command.help
    for parameter in command.params:
        assert parameter.help, parameter.name
        if not getattr(parameter, "is_flag", False):
            assert parameter.metavar or parameter.type_descriptor.choices, parameter.name


def test_every_command_that_prints_data_prints_json():
    without = {path for path in COMMANDS if not any("--json" in one.opts for one in COMMANDS[path].params)}
    assert without == WITHOUT_JSON.keys()


@each_command
def test_empty_missing_and_superfluous_arguments_are_told(invoke, path):
    arguments = parameters_of(path, TyperArgument)
    if any(argument.required for argument in arguments):
        missing = invoke(*path)
        check_ended(missing, path)
        assert missing.exit_code == 2
    if arguments:
        check_ended(invoke(*path, *("" for _ in arguments)), path)
    if not any(argument.nargs == -1 for argument in arguments):
        superfluous = invoke(*path, *("x" for _ in arguments), "x")
        assert superfluous.exit_code == 2
        check_ended(superfluous, path)
    unknown = invoke(*path, "--no-such-option")
    assert unknown.exit_code == 2
    check_ended(unknown, path)


@each_command
def test_no_wrong_value_of_an_option_shows_a_traceback(invoke, path):
    words = ["x" for _ in parameters_of(path, TyperArgument)]
    for number, option in enumerate(parameters_of(path, TyperOption)):
        if option.is_flag or option.name in ("address", "timeout") or path in SERVING:
            continue
        value = ("", "-1", "\N{SNOWMAN}")[number % 3]  # each with a third of the options, for the sake of time
        check_ended(invoke(*path, *words, f"{option.opts[0]}={value}"), (*path, option.opts[0], value))


def test_a_wrong_timeout_is_told(invoke):
    with_timeout = [path for path in COMMANDS if any(one.name == "timeout" for one in COMMANDS[path].params)]
    for number, path in enumerate(with_timeout):
        value = ("", "x", "0", "-1", "nan")[number % 5]
        wrong = invoke(*path, *("x" for _ in parameters_of(path, TyperArgument)), f"--timeout={value}")
        check_ended(wrong, path)
        assert wrong.exit_code == 2, path
