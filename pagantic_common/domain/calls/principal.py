"""The caller of a service, as identity has found it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_TENANT = "default"


MAX_SUBJECT = 512  # characters


class PrincipalKind(StrEnum):
    """How a caller has shown who it is."""

    LOCAL = "local"  # it did not have to: the service runs without identity
    API_KEY = "api_key"
    TOKEN = "token"  # noqa: S105 - of an identity provider
    CERTIFICATE = "certificate"
    SERVICE = "service"  # another service of the system, which works for a tenant


class Scope(StrEnum):
    """What a caller may do, by the kind of method."""

    EXECUTE = "execute"  # run, plan, cancel and resume
    READ = "read"  # executions, timelines, sessions, collections, tools
    WRITE = "write"  # sessions, collections
    USAGE = "usage"  # usage and cost
    ADMIN = "admin"  # keys of every tenant, models, settings


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller.

    Attributes:
        tenant: Whose data it sees: part of every stored key.
        subject: Its name within the tenant: the holder's of a key, `issuer#subject` of a token, a SPIFFE id.
        kind: How it has shown who it is.
        scopes: What it may do.
        key_id: The key that it used, which can be revoked while a call runs; empty for none.
        expires_at: When these expire, in seconds since 1970; None for never.
        tenant_token: The token that a service passes on to the services that it calls for this caller; empty for none.
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
        """What distinguishes it from the tenant's other callers, whichever key it uses; empty without identity."""
        if self.kind is PrincipalKind.LOCAL:
            return ""
        return f"{self.kind.value}:{self.subject}"


LOCAL = Principal(DEFAULT_TENANT, "local", PrincipalKind.LOCAL, frozenset(Scope))


def work_of(tenant: str, subject: str = "") -> Principal:
    """Return the caller for work that goes on for a tenant, or for one of its callers, whoever watches it."""
    return Principal(tenant, subject, PrincipalKind.SERVICE, frozenset())
