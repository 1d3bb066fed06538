"""Identity providers whose tokens the orchestrator takes, and callers whose certificates it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.defaults import is_loopback
from pagantic_common.domain.ids import is_id


@dataclass(frozen=True, slots=True)
class Issuer:
    """What the tokens of an identity provider mean here.

    Attributes:
        audience: The `aud` that a token must have.
        tenant: The tenant of every token; empty where `tenant_claim` tells it.
        tenant_claim: The claim with the tenant.
        scopes: What every token allows; empty where `scope_claim` tells it.
        scope_claim: The claim with the scopes, as text or as a list; `pagantic:read` allows what READ does. No claim
            gives ADMIN.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    audience: str
    tenant: str = ""
    tenant_claim: str = ""
    scopes: frozenset[Scope] = frozenset()
    scope_claim: str = "scope"

    def __post_init__(self) -> None:
        """Raise ValueError for an issuer that cannot be used."""
        if not self.audience:
            raise ValueError("audience is empty: a token for another service would be valid here")
        if bool(self.tenant) == bool(self.tenant_claim):
            raise ValueError("it needs either tenant or tenant_claim")


@dataclass(frozen=True, slots=True)
class CertificateCaller:
    """A caller that is known by its certificate.

    Attributes:
        tenant: Its tenant.
        scopes: What it may do.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    tenant: str
    scopes: frozenset[Scope]

    def __post_init__(self) -> None:
        """Raise ValueError for a caller that could do nothing."""
        if not is_id(self.tenant):
            raise ValueError("tenant is not an id")
        if not self.scopes:
            raise ValueError("scopes is empty: name at least one")


def is_fetchable(url: str) -> bool:
    """Tell whether keys may be fetched from a URL: over TLS, or from this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
