"""Trusted identity providers, and callers that certificates identify."""

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
        tenant: The tenant of every token, or an empty string to use `tenant_claim`.
        tenant_claim: The claim that contains the tenant.
        scopes: The scopes of every token, or an empty set to use `scope_claim`.
        scope_claim: The claim that contains the scopes, as text or as a list. `pagantic:read` grants the scope READ. No
            claim grants ADMIN.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    audience: str
    tenant: str = ""
    tenant_claim: str = ""
    scopes: frozenset[Scope] = frozenset()
    scope_claim: str = "scope"

    def __post_init__(self) -> None:
        """Raise ValueError if the issuer is invalid."""
        if not self.audience:
            raise ValueError("audience is empty: a token for another service would be valid here")
        if bool(self.tenant) == bool(self.tenant_claim):
            raise ValueError("it needs either tenant or tenant_claim")


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


def is_fetchable(url: str) -> bool:
    """Return whether keys may be fetched from a URL. The URL must use TLS or name this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
