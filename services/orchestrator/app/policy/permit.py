"""Rejects calls that the operator's policy does not permit to the current tenant."""

from __future__ import annotations

from typing import Any

from pagantic_common.domain.errors import ErrorCode, PermissionDenied
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.app.services import Call, CallTool, ListModels, ListTools, Perform, Sink
from services.orchestrator.ports.policy import DEFAULT_MODEL, Action, Collection, Model, Policy, Tool
from services.orchestrator.ports.services import OfferedTool


class Permit:
    """Applies the operator's policy to calls.

    Raises PermissionDenied: AUTH_POLICY for a model or a collection, TOOL_DENIED for a named tool. Lists of all models
    and all tools omit denied entries.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def __call__(self, perform: Perform, call: Call[Any], sink: Sink[Any]) -> Any:
        """Make a call if it is permitted."""
        if call.searched_collection is not None:
            check_collection(self._policy, Action.RETRIEVE, call.searched_collection)
        if call.used_model is not None:
            check_model(self._policy, call.used_model)
        if isinstance(call, CallTool):
            (offered,) = await perform(ListTools([call.call.name]), sink)  # The policy needs the tool's safety class.
            self._check_tool(offered)
        return self._left_of(call, await perform(call, sink))

    def _left_of(self, call: Call[Any], result: Any) -> Any:
        """Return a result without denied models and tools."""
        match call:
            case ListModels():
                return [model for model in result if not _find_model_denial(self._policy, model.name)]
            case ListTools(names) if names:
                for offered in result:
                    self._check_tool(offered)
            case ListTools():
                return [offered for offered in result if not self._find_tool_denial(offered)]
        return result

    def _check_tool(self, offered: OfferedTool) -> None:
        if denial := self._find_tool_denial(offered):
            raise PermissionDenied(denial, code=ErrorCode.TOOL_DENIED)

    def _find_tool_denial(self, offered: OfferedTool) -> str:
        tool = offered.definition
        return self._policy.find_denial(
            current_principal().tenant, Action.CALL, Tool(tool.name, tool.safety.value.lower())
        )


def check_model(policy: Policy, name: str) -> None:
    """Raise PermissionDenied (AUTH_POLICY) if the tenant may not use a model. An empty name is the default model."""
    _raise(_find_model_denial(policy, name))


def check_collection(policy: Policy, action: Action, name: str) -> None:
    """Raise PermissionDenied (AUTH_POLICY) if the tenant may not perform this action on a collection."""
    _raise(policy.find_denial(current_principal().tenant, action, Collection(name)))


def _find_model_denial(policy: Policy, name: str) -> str:
    return policy.find_denial(current_principal().tenant, Action.INFER, Model(name or DEFAULT_MODEL))


def _raise(denial: str) -> None:
    if denial:
        raise PermissionDenied(denial, code=ErrorCode.AUTH_POLICY)
