"""Our own paths."""

from __future__ import annotations

from starlette.routing import Route

from gateway.http.native.approvals import approval_routes
from gateway.http.native.executions import native_routes
from gateway.http.native.probes import PROBES
from gateway.http.settings import HttpSettings


def own_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of executions, of approvals, and of probes."""
    return [*native_routes(settings), *approval_routes(), *PROBES]
