"""The keys of stored objects. Each key begins with the tenant that owns the object."""

from __future__ import annotations

from typing import NamedTuple

from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Principal, PrincipalKind


class Account(NamedTuple):
    """The account to which work is charged: a tenant, or one caller of a tenant by name."""

    tenant: str
    subject: str = ""

    @property
    def payers(self) -> tuple[Account, ...]:
        """The accounts to which work is charged: this account and the account of its tenant."""
        if self.subject:
            return self, Account(self.tenant)
        return (self,)

    def __str__(self) -> str:
        if self.subject:
            return f"subject {self.subject!r} of tenant {self.tenant!r}"
        return f"tenant {self.tenant!r}"


DEFAULT_ACCOUNT = Account(DEFAULT_TENANT)


def account_of(caller: Principal) -> Account:
    """Return the account of a caller. A caller without an identity is charged to the account of its tenant."""
    if caller.kind is PrincipalKind.LOCAL:
        return Account(caller.tenant)
    return Account(caller.tenant, caller.subject)


class ExecutionKey(NamedTuple):
    """The key of an execution."""

    tenant: str
    request_id: str


class SessionKey(NamedTuple):
    """The key of a stored conversation."""

    tenant: str
    session_id: str
