"""Knows callers by their certificates."""

from __future__ import annotations

from collections.abc import Mapping

from pagantic_common.domain.calls.principal import Principal, PrincipalKind
from services.orchestrator.ports.identity import CertificateCaller


class CertificateCallers:
    """Authenticates callers by the SPIFFE id of their certificate; a PeerReader.

    Args:
        callers: Tenant and scopes of each caller, by SPIFFE id.
    """

    def __init__(self, callers: Mapping[str, CertificateCaller]) -> None:
        self._principals = {
            spiffe_id: Principal(caller.tenant, spiffe_id, PrincipalKind.CERTIFICATE, caller.scopes)
            for spiffe_id, caller in callers.items()
        }

    def read(self, spiffe_id: str) -> Principal | None:
        """Return the caller with this id; None for an unknown id, so that the call needs credentials."""
        return self._principals.get(spiffe_id)
