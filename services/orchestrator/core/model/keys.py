"""Keys of stored objects; each begins with the owning tenant."""

from __future__ import annotations

from typing import NamedTuple

from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Principal, PrincipalKind


class Account(NamedTuple):
    """A tenant, or one of its callers by name; its work is counted and charged."""

    tenant: str
    subject: str = ""

    @property
    def payers(self) -> tuple[Account, ...]:
        """The accounts to which its work is charged: this account and its tenant."""
        if self.subject:
            return self, Account(self.tenant)
        return (self,)

    def __str__(self) -> str:
        if self.subject:
            return f"subject {self.subject!r} of tenant {self.tenant!r}"
        return f"tenant {self.tenant!r}"


DEFAULT_ACCOUNT = Account(DEFAULT_TENANT)


def account_of(caller: Principal) -> Account:
    """Return the account to which a caller's work is charged: the tenant's for a caller without identity."""
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
