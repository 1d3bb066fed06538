"""Names that a running system knows, for the completion of a line. Where none answers in time, there are none."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.cli.serving.running import read_addresses
from pagantic_common.domain.defaults import local_address

if TYPE_CHECKING:
    from pagantic_common.client import AsyncClient

CONNECT_S = 0.1
ANSWER_S = 0.3
MAX_NAMES = 100
_DEFAULT = local_address("orchestrator")
_PLAIN_ADDRESS = re.compile(r"(?:https?://)?(?P<host>[\w.-]+|\[[0-9a-f:]+\]):(?P<port>\d{1,5})")
# A shell evaluates what completes a line, and names come from callers of the system.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+,=-]{0,127}")


def find_names(source: str) -> list[str]:
    """Return names that need no quotes in any shell; none of a system that does not answer."""
    try:
        names = _pulled() if source == "pulled" else _of_system(source)
    except Exception:  # noqa: BLE001 - a message would stand in the middle of the line that is typed
        return []
    return [name for name in dict.fromkeys(names) if _SAFE.fullmatch(name)][:MAX_NAMES]


def _of_system(source: str) -> list[str]:
    address = os.environ.get("PAGANTIC_ADDRESS") or read_addresses(os.environ).get("orchestrator", _DEFAULT)
    if not _is_listened_on(address):
        return []
    # These imports take longer than to look for a listener.
    import asyncio  # noqa: PLC0415

    from pagantic_common.client import AsyncClient  # noqa: PLC0415

    async def ask() -> list[str]:
        async with AsyncClient(address, timeout_s=ANSWER_S) as client:
            return await asyncio.wait_for(_ASKED[source](client), ANSWER_S)

    return asyncio.run(ask())


def _is_listened_on(address: str) -> bool:
    """Tell whether something may listen there; the client alone understands addresses of other forms."""
    found = _PLAIN_ADDRESS.fullmatch(address)
    if found is None:
        return True
    place = (found["host"].strip("[]"), int(found["port"]))
    connected = threading.Event()

    def connect() -> None:
        with suppress(OSError, OverflowError, ValueError), socket.create_connection(place, timeout=CONNECT_S):
            connected.set()

    # The look-up of a name has no time limit of its own, and the program may end while a daemon thread runs.
    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    connecting.join(CONNECT_S)
    return connected.is_set()


def _pulled() -> list[str]:
    from pagantic_common.models.folder import ModelFolder  # noqa: PLC0415 - pydantic takes long to import
    from pagantic_common.models.settings import models_folder  # noqa: PLC0415 - as above

    return [model.name for model in ModelFolder(models_folder()).models()]


async def _models(client: AsyncClient) -> list[str]:
    return [model.name for model in await client.list_models()]


async def _tools(client: AsyncClient) -> list[str]:
    return [tool.definition.name for tool in await client.list_tools()]


async def _sessions(client: AsyncClient) -> list[str]:
    from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb  # noqa: PLC0415 - most completions need none of it

    page = await client.list_sessions_page(pb.ListSessionsRequest(page_size=MAX_NAMES))
    return [session.session_id for session in page.sessions]


async def _collections(client: AsyncClient) -> list[str]:
    return [collection.name for collection in await client.list_collections()]


async def _executions(client: AsyncClient) -> list[str]:
    return [execution.request_id for execution in await client.list_executions(limit=MAX_NAMES)]


_ASKED: dict[str, Callable[[AsyncClient], Awaitable[list[str]]]] = {
    "models": _models,
    "tools": _tools,
    "sessions": _sessions,
    "collections": _collections,
    "executions": _executions,
}
