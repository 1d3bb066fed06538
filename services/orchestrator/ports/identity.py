"""Trusted identity providers, and callers that are identified by certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.defaults import is_loopback
from pagantic_common.domain.ids import is_id


@dataclass(frozen=True, slots=True)
class Issuer:
    """The mapping of an identity provider's tokens to tenants and scopes.

    Attributes:
        audience: The required `aud` of a token.
        tenant: The tenant of every token; empty to use `tenant_claim`.
        tenant_claim: The claim with the tenant.
        scopes: The scopes of every token; empty to use `scope_claim`.
        scope_claim: The claim with the scopes, as text or as a list; `pagantic:read` gives the scope READ. No claim
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
    """A caller that is identified by its certificate.

    Attributes:
        tenant: Its tenant.
        scopes: Its scopes.
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
    """Return whether keys may be fetched from a URL: over TLS, or from this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
