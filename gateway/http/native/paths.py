"""Our own paths."""

from __future__ import annotations

from starlette.routing import Route

from gateway.http.native.approvals import approval_routes
from gateway.http.native.collections import collection_routes
from gateway.http.native.executions import native_routes
from gateway.http.native.probes import PROBES
from gateway.http.native.serving import serving_routes
from gateway.http.native.sessions import session_routes
from gateway.http.native.tools import tool_routes
from gateway.http.settings import HttpSettings


def own_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of executions and approvals, of stored and served objects, and of probes."""
    return [
        *native_routes(settings),
        *approval_routes(),
        *session_routes(),
        *collection_routes(),
        *tool_routes(),
        *serving_routes(),
        *PROBES,
    ]
