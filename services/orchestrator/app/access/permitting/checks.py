"""Applies the policy to the tenant of the current work."""

from __future__ import annotations

from pagantic_common.domain.errors import ErrorCode, PermissionDenied
from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.ports.policy import DEFAULT_MODEL, Action, Collection, Model, Policy, Tool


def check_model(policy: Policy, name: str) -> None:
    """Raise PermissionDenied (AUTH_POLICY) if the tenant may not use a model. An empty name is the default model."""
    _raise(find_model_denial(policy, name))


def find_model_denial(policy: Policy, name: str) -> str:
    """Return the reason that the tenant may not use a model, or an empty string if it may.

    An empty `name` selects the default model.
    """
    return policy.find_denial(current_principal().tenant, Action.INFER, Model(name or DEFAULT_MODEL))


def check_collection(policy: Policy, action: Action, name: str) -> None:
    """Raise PermissionDenied (AUTH_POLICY) if the tenant may not perform this action on a collection."""
    _raise(policy.find_denial(current_principal().tenant, action, Collection(name)))


def find_tool_denial(policy: Policy, tool: ToolDefinition) -> str:
    """Return the reason that the tenant may not call a tool, or an empty string if it may."""
    return policy.find_denial(current_principal().tenant, Action.CALL, Tool(tool.name, tool.safety.value.lower()))


def _raise(denial: str) -> None:
    if denial:
        raise PermissionDenied(denial, code=ErrorCode.AUTH_POLICY)
