"""`python -m deploy.local.host`: runs every service in a single process, on the orchestrator's port.

This is meant for small installations, notebooks and tests. The services are the same as elsewhere and call each other
over gRPC. Each service has its own settings, except for host and port. Commands find the host like any other system.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from deploy.local import record
from deploy.local.areas import Area, ConfigurationError, child_environment, read_areas
from deploy.local.known_settings import use_file
from deploy.local.supervision import Supervision, SupervisionError
from pagantic_common.domain.defaults import PRIVATE_UMASK, is_loopback
from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.shared_port import share
from pagantic_common.rpc.process.program import Program, StartFailed, run_service
from pagantic_common.settings import EXIT_CONFIG, ServiceSettings, Tls, load_settings, state_folder
from services.constraint.__main__ import PROGRAM as CONSTRAINT
from services.context.__main__ import PROGRAM as CONTEXT
from services.inference.__main__ import SWITCH_INTERVAL_S
from services.inference.__main__ import open_app as open_inference
from services.inference.settings import InferenceSettings
from services.orchestrator.__main__ import open_app as open_orchestrator
from services.orchestrator.settings import OrchestratorSettings
from services.rerank.__main__ import PROGRAM as RERANK
from services.tools.__main__ import PROGRAM as TOOLS


class HostSettings(OrchestratorSettings):
    """The orchestrator's settings, adapted to a port that all services share."""

    @property
    def max_received_bytes(self) -> int:
        """The largest message that the port accepts."""
        return self.max_message_bytes

    @property
    def max_calls_per_host(self) -> int:
        """Maximum number of concurrent calls per host, including the services' own calls."""
        return self.max_concurrent_rpcs


# The services are in start order. The orchestrator starts last and stops first.
SERVICES: tuple[Program[Any], ...] = (
    Program("inference", InferenceSettings, open_inference),
    CONSTRAINT,
    CONTEXT,
    RERANK,
    TOOLS,
    Program("orchestrator", HostSettings, open_orchestrator),
)


def hosted_areas(environment: Mapping[str, str]) -> tuple[Area, ...]:
    """Return all services, each at the orchestrator's port.

    Raises ConfigurationError if a setting is invalid, the port is reachable from other machines, or TLS is configured.
    """
    areas = read_areas(environment)
    door = next(area for area in areas if area.name == "orchestrator")
    for area in areas:
        if (environment.get(f"PAGANTIC_{area.name.upper()}_TLS") or environment.get("PAGANTIC_TLS")) == Tls.FILES:
            raise ConfigurationError(
                f"TLS of the {area.name} service is 'files': one port of this machine serves all services in plain "
                "text; use `pagantic up` for TLS"
            )
    if not is_loopback(door.host):
        raise ConfigurationError(
            f"the host is {door.host!r}: one port serves the inner services too, which are for this machine alone; "
            "use `pagantic up` to serve other machines, or a loopback address"
        )
    return tuple(Area(area.name, door.host, door.port) for area in areas)


def host_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every service finds the other services at the orchestrator's port."""
    return child_environment(hosted_areas(environment), state_folder(environment), environment)


@asynccontextmanager
async def open_all(settings: Sequence[ServiceSettings]) -> AsyncIterator[Sequence[Registration]]:
    """Open all services, and close them in reverse order. Raises StartFailed, which names the failing service."""
    async with AsyncExitStack() as stack:
        registrations: list[Registration] = []
        for own_settings, service in zip(settings, SERVICES, strict=True):
            try:
                opened = await stack.enter_async_context(service.open_app(own_settings))
            except PaganticError as error:
                raise StartFailed(service.area, error) from None
            registrations += opened
        yield _merged(registrations)


def _merged(registrations: Sequence[Registration]) -> list[Registration]:
    """Return one registration per service name. The orchestrator also serves the context service to callers."""
    merged: dict[str, Registration] = {}
    for registration in registrations:
        first = merged.get(registration.service_name)
        merged[registration.service_name] = registration if first is None else share(first, registration)
    return list(merged.values())


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    os.umask(PRIVATE_UMASK)
    try:
        use_file()
        environment = dict(os.environ)
        supervision = Supervision(state_folder().resolve())
        areas = hosted_areas(environment)
        supervision.make_folders()
        os.environ.update(host_environment(environment))
    except (ConfigurationError, InvalidRequest, SupervisionError) as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    if (running := record.load(supervision.state)) is not None:
        print(f"a system of this state folder runs (pid {running.pid}): run `pagantic down` first", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    settings: list[ServiceSettings] = [load_settings(service.settings) for service in SERVICES]
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log = supervision.logs / "host.log"
    print(f"starting; state in {supervision.state}, log in {log}", flush=True)

    def announce() -> None:
        record.save(supervision.state, os.getpid(), areas, environment, is_host=True)
        print(f"serving on {areas[0].address}; Ctrl-C stops", flush=True)

    try:
        with log.open("a", encoding="utf-8") as stream:
            run_service("orchestrator", settings[-1], partial(open_all, settings), on_listening=announce, log_to=stream)
    finally:
        _forget_own(supervision.state)


def _forget_own(state: Path) -> None:
    running = record.load(state)
    if running is not None and running.pid == os.getpid():
        record.forget(state)


if __name__ == "__main__":
    main()
