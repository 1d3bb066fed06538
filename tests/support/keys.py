"""Keys of what the default tenant owns."""

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey


def execution(request_id, tenant=DEFAULT_TENANT):
    return ExecutionKey(tenant, request_id)


def session(session_id, tenant=DEFAULT_TENANT):
    return SessionKey(tenant, session_id)
