"""Restricts the services behind the orchestrator to permitted callers.

The certificate identifies the calling service, and the token identifies the tenant.
"""

from __future__ import annotations

from types import MappingProxyType

from pagantic_common.domain.calls.principal import Principal
from pagantic_common.domain.errors import ErrorCode, PermissionDenied
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.tenant_tokens import read_tenant_tokens
from pagantic_common.settings import InnerSettings, Tls
from pagantic_common.telemetry.logging import get_logger

OPERATOR = "operator"  # Commands that call services directly.
CALLERS = MappingProxyType(
    {
        "inference": ("orchestrator", "constraint", "context", "rerank"),
        "constraint": ("orchestrator",),
        "context": ("orchestrator",),
        "rerank": ("orchestrator",),
        "tools": ("orchestrator",),
    }
)

log = get_logger(__name__)


class ServicePeers:
    """A PeerReader that admits only calls of permitted services.

    Args:
        ids: SPIFFE ids of the permitted services.
    """

    def __init__(self, ids: frozenset[str]) -> None:
        self._ids = ids

    def read(self, spiffe_id: str) -> Principal | None:
        """Return None for a permitted service, because its tenant token names the caller.

        Raises PermissionDenied for any other caller.
        """
        if spiffe_id in self._ids:
            return None
        log.warning("a service may not call", spiffe_id=spiffe_id)
        raise PermissionDenied(
            "the caller's certificate is not one of a service that may call this one", code=ErrorCode.AUTH_DENIED
        )


def guard_of(area: str, settings: InnerSettings) -> Guard:
    """Return the guard of a service. Raises InvalidRequest if a key file is unusable."""
    return Guard(read_tenant_tokens(area, settings), _peers_of(area, settings))


def _peers_of(area: str, settings: InnerSettings) -> ServicePeers | None:
    """Return the permitted callers, or None if connections do not use certificates from files."""
    if settings.tls is not Tls.FILES:
        return None
    return ServicePeers(frozenset(settings.spiffe_prefix + name for name in (*CALLERS[area], OPERATOR)))
