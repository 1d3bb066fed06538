"""Tab completion of a command line: completes names from the running system and splits words as bash does.

Typer completes commands, options and words. `names_of` or `words` provides the autocompletion of a parameter. The shell
shows all output in the line that the user types, so failures are not printed. If the system does not answer in time,
no names are offered.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.cli.running import read_addresses
from pagantic_common.domain.defaults import local_address

if TYPE_CHECKING:
    from pagantic_common.client import AsyncClient

VARIABLE = "_PAGANTIC_COMPLETE"
CONNECT_S = 0.1
ANSWER_S = 0.3
MAX_NAMES = 100
PULLED = "pulled"
_DEFAULT = local_address("orchestrator")
_PLAIN_ADDRESS = re.compile(r"(?:https?://)?(?P<host>[\w.-]+|\[[0-9a-f:]+\]):(?P<port>\d{1,5})")
# Only names of this form are offered: a shell evaluates completions, and callers of the system choose the names.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+,=-]{0,127}")
# Bash splits words at these characters and replaces only the text after the last of them. Model names have colons.
_BREAKS = ":="


def words(choices: Iterable[str]) -> Callable[[], list[str]]:
    """Return the autocompletion of a parameter that accepts one of these words."""
    return lambda: list(choices)


def names_of(source: str) -> Callable[[], list[str]]:
    """Return the autocompletion of a parameter that accepts a name from `_NAMES`, or a pulled model for PULLED."""
    return lambda: find_names(source)


def find_names(source: str) -> list[str]:
    """Return at most 100 names that need no quotes in any shell, or an empty list if the system does not answer."""
    try:
        names = _pulled() if source == PULLED else _names_of_system(source)
    except Exception:  # noqa: BLE001 - a message would stand in the middle of the line that is typed
        return []
    return [name for name in dict.fromkeys(names) if _SAFE.fullmatch(name)][:MAX_NAMES]


def _names_of_system(source: str) -> list[str]:
    address = os.environ.get("PAGANTIC_ADDRESS") or read_addresses(os.environ).get("orchestrator", _DEFAULT)
    if not _is_listened_on(address):
        return []
    # Imported only now, because these imports take longer than the check for a listener.
    import asyncio

    from pagantic_common.client import AsyncClient

    async def ask() -> list[str]:
        async with AsyncClient(address, timeout_s=ANSWER_S) as client:
            return await asyncio.wait_for(_NAMES[source](client), ANSWER_S)

    return asyncio.run(ask())


def _is_listened_on(address: str) -> bool:
    """Return whether a server may be listening at an address, or True if only the client can parse the address."""
    match = _PLAIN_ADDRESS.fullmatch(address)
    if match is None:
        return True
    place = (match["host"].strip("[]"), int(match["port"]))
    connected = threading.Event()

    def connect() -> None:
        with suppress(OSError, OverflowError, ValueError), socket.create_connection(place, timeout=CONNECT_S):
            connected.set()

    # Name resolution has no time limit. It runs in a background thread, which does not keep the program from exiting.
    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    connecting.join(CONNECT_S)
    return connected.is_set()


def _pulled() -> list[str]:
    from pagantic_common.models.folder import ModelFolder
    from pagantic_common.models.settings import models_folder

    return [model.name for model in ModelFolder(models_folder()).models()]


async def _models(client: AsyncClient) -> list[str]:
    return [model.name for model in await client.list_models()]


async def _tools(client: AsyncClient) -> list[str]:
    return [tool.definition.name for tool in await client.list_tools()]


async def _sessions(client: AsyncClient) -> list[str]:
    from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb

    page = await client.list_sessions_page(pb.ListSessionsRequest(page_size=MAX_NAMES))
    return [session.session_id for session in page.sessions]


async def _collections(client: AsyncClient) -> list[str]:
    return [collection.name for collection in await client.list_collections()]


async def _executions(client: AsyncClient) -> list[str]:
    return [execution.request_id for execution in await client.list_executions(limit=MAX_NAMES)]


_NAMES: dict[str, Callable[[AsyncClient], Awaitable[list[str]]]] = {
    "models": _models,
    "tools": _tools,
    "sessions": _sessions,
    "collections": _collections,
    "executions": _executions,
}


def prepare_answer() -> None:
    """Keep the messages of libraries off the terminal, and complete names with a colon or an equals sign in bash.

    Call this function after typer has registered its own bash completion.
    """
    if not os.environ.get(VARIABLE, "").startswith("complete_"):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        from typer._click.shell_completion import CompletionItem, add_completion_class
        from typer._completion_classes import BashComplete
    except ImportError:  # If typer lacks these modules, only this part of the completion is missing.
        return

    class Bash(BashComplete):
        kept = 0

        def get_completion_args(self) -> tuple[list[str], str]:
            arguments, last = read_bash_line(os.environ)
            value = last.partition("=")[2] if last.startswith("-") else last
            self.kept = 1 + max(value.rfind(character) for character in _BREAKS)
            return arguments, last

        def format_completion(self, item: CompletionItem) -> str:
            return str(item.value)[self.kept :]

    add_completion_class(Bash, "bash")


def read_bash_line(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the whole words after the program's name, and the possibly empty word at the cursor.

    Words that bash has split at a colon or an equals sign are joined again.
    """
    parts = environment.get("COMP_WORDS", "").split("\n")
    try:
        cursor = int(environment.get("COMP_CWORD", ""))
    except ValueError:
        cursor = len(parts) - 1
    line: list[str] = []
    is_open = False
    for part in (*parts, "")[1 : cursor + 1]:
        is_break = bool(part) and not part.strip(_BREAKS)
        if line and (is_open or is_break):
            line[-1] += part
        else:
            line.append(part)
        is_open = is_break
    if not line:
        return [], ""
    return line[:-1], line[-1]
