"""Loads the names of the models, tools and collections that a deployment offers to requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gateway.tui.work.steps import Failure
from pagantic.common.v1 import message_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PaganticError

T = TypeVar("T")
LIST_S: Final = 3.0


@dataclass(frozen=True)
class Offered:
    """Names that a request may use. `problems` lists the reasons that lists could not be loaded."""

    models: list[str] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)
    collections: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def load_offered(client: AsyncClient) -> Offered:
    """Return the available names. If the key may not read a list, the other lists are still returned."""
    problems: list[str] = []
    models, tools, collections = await asyncio.gather(
        _listed("models", client.list_models(), problems),
        _listed("tools", client.list_tools(), problems),
        _listed("collections", client.list_collections(), problems),
    )
    return Offered(
        models=chatting(models),
        tools={tool.definition.name: tool.definition.description for tool in tools},
        collections=[collection.name for collection in collections],
        problems=problems,
    )


def chatting(models: list[message_pb2.ModelInfo]) -> list[str]:
    """Return the models that can chat, with the default model first."""
    return [model.name for model in models if "chat" in model.capabilities]


async def _listed(name: str, listing: Coroutine[Any, Any, list[T]], problems: list[str]) -> list[T]:
    try:
        async with asyncio.timeout(LIST_S):
            return await listing
    except PaganticError as error:
        failure = Failure.of(error)
        problems.append(f"the {name} cannot be listed: {failure.code}: {failure.message}")
    except TimeoutError:
        problems.append(f"the {name} cannot be listed: nothing answered within {LIST_S:g} s")
    return []
