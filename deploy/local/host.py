"""`python -m deploy.local.host`: every service in one process, on the orchestrator's port.

For small installations, notebooks and tests. The services are the same and call each other as they do elsewhere, over
gRPC; each is configured by its own settings, but for its host and port.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from deploy.local.areas import Area, ConfigurationError, child_environment, read_areas, state_folder
from pagantic_common.rpc.server import Registration, run_service
from pagantic_common.settings import EXIT_CONFIG, ServiceSettings, load_settings
from services.constraint.__main__ import open_app as open_constraint
from services.constraint.settings import ConstraintSettings
from services.context.__main__ import open_app as open_context
from services.context.settings import ContextSettings
from services.inference.__main__ import SWITCH_INTERVAL_S
from services.inference.__main__ import open_app as open_inference
from services.inference.settings import InferenceSettings
from services.orchestrator.__main__ import open_app as open_orchestrator
from services.orchestrator.settings import OrchestratorSettings
from services.rerank.__main__ import open_app as open_rerank
from services.rerank.settings import RerankSettings
from services.tools.__main__ import open_app as open_tools
from services.tools.settings import ToolsSettings

OpenService = Callable[[Any], AbstractAsyncContextManager[Sequence[Registration]]]

# In the order in which they start; the orchestrator is last, and stops first.
SERVICES: tuple[tuple[type[ServiceSettings], OpenService], ...] = (
    (InferenceSettings, open_inference),
    (ConstraintSettings, open_constraint),
    (ContextSettings, open_context),
    (RerankSettings, open_rerank),
    (ToolsSettings, open_tools),
    (OrchestratorSettings, open_orchestrator),
)


def host_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every service finds the others at the orchestrator's port."""
    areas = read_areas(environment)
    door = next(area for area in areas if area.name == "orchestrator")
    hosted = tuple(Area(area.name, door.host, door.port) for area in areas)
    return child_environment(hosted, state_folder(environment), environment)


@asynccontextmanager
async def open_all(settings: Sequence[ServiceSettings]) -> AsyncIterator[Sequence[Registration]]:
    """Open every service; they close in the reverse order."""
    async with AsyncExitStack() as stack:
        registrations: list[Registration] = []
        for one, (_, open_service) in zip(settings, SERVICES, strict=True):
            registrations += await stack.enter_async_context(open_service(one))
        yield registrations


def main() -> None:
    """Run until told to stop."""
    try:
        os.environ.update(host_environment(os.environ))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    settings = [load_settings(kind) for kind, _ in SERVICES]
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_service("orchestrator", settings[-1], partial(open_all, settings))


if __name__ == "__main__":
    main()
