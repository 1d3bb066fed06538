"""The tree of commands: the source location and the help line of each command.

The module of a command is imported only when the command line names the command. `pagantic --help` and the Tab key
import no command modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gateway.cli.completion import prepare_answer
from gateway.cli.failures import EXIT_INTERRUPTED, offering

# For each name: the module within gateway.cli, with its function or group, and the first sentence of the help text.
COMMANDS = {
    "init": ("serving.starting.init:init", "Write a settings file, pagantic.env, which every command finds."),
    "up": ("serving.local:up", "Start every service and wait until all are ready."),
    "down": ("serving.local:down", "Stop every service."),
    "status": ("serving.local:status", "Show the state of each service."),
    "logs": ("serving.local:logs", "Show the logs of the services of this machine."),
    "doctor": ("serving.doctor:doctor", "Check this machine and its services."),
    "tune": ("serving.tuning:tune", "Measure again how the engine runs best."),
    "chat": ("chat:chat", "Chat: a single turn, or a conversation."),
    "ask": ("retrieval.ask:ask", "Answer from a collection, with quotes."),
    "structured": ("requests:structured", "Answer a text with JSON that satisfies a schema."),
    "vote": ("requests:vote", "Let several answers vote, and print the winner."),
    "plan": ("requests:plan", "Run a plan of several steps and print its last result."),
    "run": ("requests:run", "Run a request of any mode and print the response as JSON."),
    "executions": ("stored.executions:executions", "List executions, newest first."),
    "timeline": ("stored.executions:timeline", "Show the events of an execution."),
    "cancel": ("stored.executions:cancel", "Cancel an execution that runs."),
    "resume": ("stored.executions:resume", "Continue an interrupted execution."),
    "signal": ("stored.waits:signal", "Send a signal to an execution."),
    "waits": ("stored.waits:waits", "List the open waits of executions."),
    "replay": ("stored.replays:replay", "Run a recorded execution again, and show the differences."),
    "usage": ("stored.executions:usage", "Show tokens and cost by conversation, model and caller."),
    "ingest": ("retrieval.ingest:ingest", "Store files, so that requests can retrieve from them."),
    "verify": ("retrieval.documents:verify", "Compare a collection with the data derived from its texts."),
    "calibrate": ("calibration.answerability:calibrate", "Calibrate the probability of an answer on labels."),
    "fit": ("calibration.decisions:fit", "Fit decisions to labels."),
    "tools": ("serving.tools:tools", "List the tools that a request may name with --tool."),
    "pull": ("models.pulling:pull", "Get a model, to serve it by its name."),
    "rm": ("models.commands:rm", "Delete a pulled model, or files of interrupted pulls."),
    "serve": ("serving.http:serve", "Serve OpenAI's API and others over HTTP."),
    "mcp": ("serving.mcp:mcp", "Serve tools, collections and prompts to MCP clients."),
    "show": ("stored.executions:show_execution", "Show an execution and its stored response."),
    "models": ("models.commands:models", "List, load and unload models."),
    "sessions": ("stored.sessions:sessions", "List, show and delete stored conversations."),
    "approvals": ("stored.approvals:approvals", "List tool calls that wait, approve and reject them."),
    "keys": ("stored.keys:keys", "Create, list and revoke the API keys of callers."),
    "budgets": ("stored.budgets:budgets", "Limit the use of tokens and money."),
    "audit": ("stored.audit:audit", "List and verify the records of who asked for what."),
    "collections": ("retrieval.documents:collections", "List, delete and re-embed collections of documents."),
    "eval": ("evaluation.commands:evaluations", "Evaluate a suite of cases."),
}


class CommandTree(TyperGroup):
    """The group of all commands, which imports a command only when the command line names it."""

    def __init__(self, **options: Any) -> None:
        options["commands"] = {name: TyperCommand(name, help=line) for name, (_place, line) in COMMANDS.items()}
        super().__init__(**options)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command that the command line names, or answer a shell's completion request."""
        prepare_answer()
        return super().main(*args, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command that the command line names, and return it with the words after its name."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        try:
            return name, load_command(name), rest
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None


def load_command(name: str) -> Any:
    """Import a command or a group of commands by its name."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    work = getattr(import_module(f"{__package__}.{module}"), attribute)
    holder = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(work, typer.Typer):
        holder.add_typer(work, name=name)
    else:
        holder.command(name, cls=PlainCommand)(work)
    return typer.main.get_group(holder).commands[name]


class PlainCommand(TyperCommand):
    """A command whose help shows its arguments as manuals do, and whose failures name its options."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and name its options in failures."""
        with offering(name for parameter in self.params for name in parameter.opts):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line without braces."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the descriptions of arguments and options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((record[0].split(" <")[0], record[1]))
            else:
                sections["Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
