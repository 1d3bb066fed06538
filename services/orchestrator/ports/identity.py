"""Trusted identity providers, and callers with certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.defaults import is_loopback
from pagantic_common.domain.ids import is_id


@dataclass(frozen=True, slots=True)
class Issuer:
    """The mapping of an identity provider's tokens to tenants and scopes.

    Attributes:
        audience: The required `aud` of a token.
        tenant: The tenant of every token, or an empty string to use `tenant_claim`.
        tenant_claim: The claim that contains the tenant.
        tenants: The tenants that `tenant_claim` may name; an empty set permits any tenant except DEFAULT_TENANT.
        scopes: The scopes of every token, or an empty set to use `scope_claim`.
        scope_claim: The claim that contains the scopes, as text or as a list. `pagantic:read` grants the scope READ. No
            claim grants ADMIN.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    audience: str
    tenant: str = ""
    tenant_claim: str = ""
    tenants: frozenset[str] = frozenset()
    scopes: frozenset[Scope] = frozenset()
    scope_claim: str = "scope"

    def __post_init__(self) -> None:
        """Raise ValueError if the issuer is invalid."""
        if not self.audience:
            raise ValueError("audience is empty: a token for another service would be valid here")
        if bool(self.tenant) == bool(self.tenant_claim):
            raise ValueError("it needs either tenant or tenant_claim")
        if self.tenants and not self.tenant_claim:
            raise ValueError("tenants needs a tenant_claim that names one of them")
        if wrong := next((tenant for tenant in self.tenants if not is_id(tenant)), None):
            raise ValueError(f"tenants has {wrong!r}, which is not an id")

    def speaks_for(self, tenant: str) -> bool:
        """Return whether a token may name this tenant.

        The default tenant has the data from before identity was set up, so an issuer must name it explicitly.
        """
        if self.tenant or self.tenants:
            return tenant == self.tenant or tenant in self.tenants
        return tenant != DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class CertificateCaller:
    """A caller that is identified by a certificate.

    Attributes:
        tenant: The caller's tenant.
        scopes: The caller's scopes.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    tenant: str
    scopes: frozenset[Scope]

    def __post_init__(self) -> None:
        """Raise ValueError if the tenant is malformed or if the caller has no scopes."""
        if not is_id(self.tenant):
            raise ValueError("tenant is not an id")
        if not self.scopes:
            raise ValueError("scopes is empty: name at least one")


def check_issuers(issuers: Mapping[str, Issuer]) -> None:
    """Raise ValueError if an issuer's keys cannot be fetched, or if it could name another issuer's tenants."""
    if wrong := next((url for url in issuers if not is_fetchable(url)), None):
        raise ValueError(f"{wrong} is not an https URL")
    unbound = [url for url, issuer in issuers.items() if issuer.tenant_claim and not issuer.tenants]
    if unbound and len(issuers) > 1:
        raise ValueError(f"{unbound[0]} is one of several issuers: list its tenants")


def is_fetchable(url: str) -> bool:
    """Return whether keys may be fetched from a URL. The URL must use TLS or name this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
