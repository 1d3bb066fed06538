"""Wires authentication, API keys, the audit log and tenant policies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from pagantic_common.domain.calls.principal import Principal, PrincipalKind
from pagantic_common.rpc.access.gate import Authenticator, Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.settings import Auth
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.access.call_rates import CallRates
from services.orchestrator.adapters.access.cedar_policy import read_policy
from services.orchestrator.adapters.access.key_files import read_admin_keys, tenant_credentials
from services.orchestrator.adapters.context_proxy import SCOPES, SERVICE_NAME, ContextProxy
from services.orchestrator.app.access.audit import Audit
from services.orchestrator.app.access.keys import Keys
from services.orchestrator.app.running.registry import Registry
from services.orchestrator.ports.audit import AuditStore
from services.orchestrator.ports.identity import CertificateCaller
from services.orchestrator.ports.keys import KeyStore
from services.orchestrator.ports.policy import Action, Model, Policy
from services.orchestrator.settings import OrchestratorSettings


@asynccontextmanager
async def open_identity(
    settings: OrchestratorSettings, store: KeyStore
) -> AsyncIterator[tuple[Keys, Authenticator | None]]:
    """Yield the API keys and the authenticator of callers, which is None unless AUTH is `keys`."""
    keys = Keys(store, read_admin_keys(settings.admin_key_file), SystemClock())
    if settings.auth is not Auth.KEYS:
        yield keys, None
        return
    from services.orchestrator.adapters.oidc.tokens import knowing_tokens  # noqa: PLC0415 - it imports an HTTP client

    async with knowing_tokens(settings.oidc_issuers, keys) as authenticator:
        yield keys, authenticator


@dataclass(frozen=True, slots=True)
class Access:
    """The audit log and the policy. A policy of None permits everything."""

    settings: OrchestratorSettings
    audit: Audit
    policy: Policy | None

    def may_use(self, tenant: str, model: str) -> bool:
        """Return whether a tenant may use a model."""
        return self.policy is None or not self.policy.find_denial(tenant, Action.INFER, Model(model))

    def guard(self, authenticator: Authenticator | None) -> Guard:
        """Return the guard of the orchestrator's port. It requests certificates only if callers are configured."""
        peers = None
        if self.settings.certificate_callers:
            peers = CertificateCallers(self.settings.certificate_callers)
        rates = CallRates(self.settings.call_rate_of_tenant, self.settings.call_rate_of_key)
        return Guard(authenticator, peers, self.audit.note_denied, rates.count)

    def context(self, channel: grpc.aio.Channel, guard: Guard, registry: Registry) -> Registration:
        """Return the registration that offers the context service on the orchestrator's port."""
        credentials = tenant_credentials(self.settings.signing_key_file)
        patience_s = self.settings.connect_patience_s
        proxy = ContextProxy(channel, self.audit, self.policy, patience_s, credentials=credentials, registry=registry)
        return Registration(SERVICE_NAME, proxy.add_to, SCOPES, guard)


def read_access(settings: OrchestratorSettings, store: AuditStore) -> Access:
    """Return the audit log and the policy. Raises InvalidRequest if the policy file is invalid."""
    audit = Audit(store, SystemClock(), is_on=settings.records_audit)
    return Access(settings, audit, read_policy(settings.policy_file))


class CertificateCallers:
    """Authenticates callers by the SPIFFE ID of their certificate. Implements PeerReader.

    Args:
        callers: The tenant and the scopes of each caller, by SPIFFE ID.
    """

    def __init__(self, callers: Mapping[str, CertificateCaller]) -> None:
        self._principals = {
            spiffe_id: Principal(caller.tenant, spiffe_id, PrincipalKind.CERTIFICATE, caller.scopes)
            for spiffe_id, caller in callers.items()
        }

    def read(self, spiffe_id: str) -> Principal | None:
        """Return the caller with this ID. None if the ID is unknown: the call then needs credentials."""
        return self._principals.get(spiffe_id)
