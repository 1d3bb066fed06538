"""Describes all commands for their completion. Loads them, which takes most of the time of a start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from gateway.cli.main import app
from gateway.completion.words import Argument, Command, Option, Value
from pagantic.orchestrator.v1 import budget_pb2, execution_pb2, key_pb2
from pagantic_common.client.descriptions import mode_name, state_name
from pagantic_common.client.hints import REASONING_MODES
from pagantic_common.client.requests import AUTO, RETRIEVERS, STRATEGIES
from pagantic_common.domain.defaults import PORTS
from pagantic_common.models.catalog import catalog

HELP_OPTION = Option(
    names=["--help", "-h"], help="Show help.", is_flag=True, is_repeatable=False, value=Value(words=[], source="")
)
HELP_CHARACTERS = 60
# What options and arguments of these names take, whatever their command.
_SOURCES = {
    "model": "models",
    "tool": "tools",
    "session": "sessions",
    "session_id": "sessions",
    "context": "collections",
    "collection": "collections",
    "request": "executions",
}
# An argument of these names differs from an option of the same name, which takes a new id or another name.
_SOURCES_OF_ARGUMENTS = {"request_id": "executions"}
_SOURCES_OF_NAMES = {
    "collections": "collections",
    "verify": "collections",
    "models": "models",
    "rm": "pulled",
}


def describe_commands() -> Command:
    """Return the description of `pagantic`."""
    return _described(typer.main.get_command(app), ())


def _described(command: Any, path: tuple[str, ...]) -> Command:
    commands = {}
    if isinstance(command, TyperGroup):
        commands = {name: _described(inner, (*path, name)) for name, inner in command.commands.items()}
    options = [_option_of(one) for one in command.params if isinstance(one, TyperOption) and not one.hidden]
    arguments = [_argument_of(one, path) for one in command.params if isinstance(one, TyperArgument)]
    return Command(
        help=command.get_short_help_str(HELP_CHARACTERS),
        default=getattr(command, "default_command", ""),
        commands=commands,
        options=[*options, HELP_OPTION],
        arguments=arguments,
    )


def _option_of(option: TyperOption) -> Option:
    return Option(
        names=[*option.opts, *option.secondary_opts],
        help=(option.help or "").partition(". ")[0],
        is_flag=bool(option.is_flag or option.count),
        is_repeatable=option.multiple,
        value=_value_of(option, _SOURCES.get(option.name, "")),
    )


def _argument_of(argument: TyperArgument, path: tuple[str, ...]) -> Argument:
    source = _SOURCES.get(argument.name) or _SOURCES_OF_ARGUMENTS.get(argument.name, "")
    if argument.name == "name":
        source = _SOURCES_OF_NAMES.get(path[0], "")
    return Argument(is_last=argument.nargs == -1, value=_value_of(argument, source))


def _value_of(parameter: TyperOption | TyperArgument, source: str) -> Value:
    described = parameter.type_descriptor
    if described.is_path or described.is_file:
        return Value(words=[], source="")  # the shell completes files
    if described.choices is not None:
        return Value(words=[str(choice) for choice in described.choices], source="")
    return Value(words=_words().get(parameter.name, []), source=source)


def _words() -> dict[str, list[str]]:
    """Return the words that options and arguments of these names take, whatever their command."""
    return {
        "reasoning": [*REASONING_MODES],
        "strategy": [*STRATEGIES],
        "retriever": [AUTO, *(name.lower() for name in RETRIEVERS)],
        "tool_choice": ["auto", "required", "none"],
        "state": [state_name(value) for value in execution_pb2.LifecycleState.values() if value],
        "mode": [mode_name(value) for value in execution_pb2.Mode.values() if value],
        "per": _lower_names(budget_pb2.BudgetPeriod.keys(), "BUDGET_PERIOD_"),
        "scopes": _lower_names(key_pb2.KeyScope.keys(), "KEY_SCOPE_"),
        "service": [*PORTS],
        "reference": [*catalog()],
    }


def _lower_names(names: Iterable[str], prefix: str) -> list[str]:
    return [name.removeprefix(prefix).lower() for name in names if not name.endswith("_UNSPECIFIED")]
