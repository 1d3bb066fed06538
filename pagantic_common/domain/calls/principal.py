"""The caller of a service, as identified by authentication."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_TENANT = "default"


MAX_SUBJECT = 512  # characters


class PrincipalKind(StrEnum):
    """The methods of authentication."""

    LOCAL = "local"  # Not authenticated: the service runs without identity checks.
    API_KEY = "api_key"
    TOKEN = "token"  # noqa: S105 - of an identity provider
    CERTIFICATE = "certificate"
    SERVICE = "service"  # Another service of the system that works for a tenant.


class Scope(StrEnum):
    """The permissions of a caller, by kind of method."""

    EXECUTE = "execute"  # run, plan, cancel and resume
    READ = "read"  # executions, timelines, sessions, collections, tools
    WRITE = "write"  # sessions, collections
    USAGE = "usage"  # usage and cost
    ADMIN = "admin"  # keys of every tenant, models, settings


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller.

    Attributes:
        tenant: Owner of the data that the caller can see; part of every stored key.
        subject: The caller's name within the tenant: a key holder's name, `issuer#subject` of a token, or a SPIFFE id.
        kind: The caller's authentication method.
        scopes: The caller's permissions.
        key_id: The id of the caller's API key, or an empty string if there is none. The key can be revoked while a call
            runs.
        expires_at: The time at which the credentials expire, in seconds since 1970, or None if they never expire.
        tenant_token: The token that a service forwards when it calls other services for this caller, or an empty string
            without a token.
    """

    tenant: str
    subject: str
    kind: PrincipalKind
    scopes: frozenset[Scope]
    key_id: str = ""
    expires_at: float | None = None
    tenant_token: str = field(default="", repr=False)

    @property
    def identity(self) -> str:
        """The caller's name within the tenant, the same for all the caller's keys, or empty without authentication."""
        if self.kind is PrincipalKind.LOCAL:
            return ""
        return f"{self.kind.value}:{self.subject}"

    @property
    def sharing_tenant(self) -> str | None:
        """The tenant whose share of a capacity the caller uses, or None without authentication.

        A service without authentication has a single user, who does not share its capacity.
        """
        if self.kind is PrincipalKind.LOCAL:
            return None
        return self.tenant


LOCAL = Principal(DEFAULT_TENANT, "local", PrincipalKind.LOCAL, frozenset(Scope))


def work_of(tenant: str, subject: str = "") -> Principal:
    """Return the caller to use for background work of a tenant or of one of its callers."""
    return Principal(tenant, subject, PrincipalKind.SERVICE, frozenset())
