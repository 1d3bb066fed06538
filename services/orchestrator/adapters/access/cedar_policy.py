"""Cedar policies (https://www.cedarpolicy.com) from a file, which is reloaded when it changes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cedarpy

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.access.watched_file import WatchedFile
from services.orchestrator.ports.policy import Action, Policy, Resource

POLICY_FILE = "POLICY_FILE"
MAX_DECISIONS = 4096
MAX_FILE_BYTES = 1024 * 1024
MAX_NAME, SHOWN = 200, 80
SCHEMA = """
entity Tenant;
entity Model;
entity Tool = { safety: String };
entity Collection;
action infer appliesTo { principal: Tenant, resource: Model };
action call appliesTo { principal: Tenant, resource: Tool };
action retrieve, change appliesTo { principal: Tenant, resource: Collection };
"""
_WANTS = {
    Action.INFER: "infer with model",
    Action.CALL: "call tool",
    Action.RETRIEVE: "retrieve from collection",
    Action.CHANGE: "change collection",
}

_Asked = tuple[str, Action, Resource]


@dataclass(frozen=True, slots=True)
class _Policies:
    """Parsed policies and a cache of their decisions."""

    parsed: cedarpy.PolicySet
    denials: OrderedDict[_Asked, str] = field(default_factory=OrderedDict)


class CedarPolicy(Policy):
    """Cedar policies from a file. A request is permitted if at least one policy permits it and no policy forbids it.

    A tenant is a `Tenant::"name"`; a resource is a `Model`, `Tool` (with `safety`) or `Collection`.
    """

    def __init__(self, path: Path) -> None:
        """Raise InvalidRequest if the file is unusable. If it becomes unusable later, the previous policies stay."""
        self._file = WatchedFile(path, POLICY_FILE, _parse, MAX_FILE_BYTES)

    def find_denial(self, tenant: str, action: Action, resource: Resource) -> str:
        """Return the reason that a tenant may not perform an action, or an empty string if the action is permitted."""
        if len(resource.name) > MAX_NAME:
            return f"{_subject(tenant, action, resource)}: no name has more than {MAX_NAME} characters"
        policies, request = self._file.content(), (tenant, action, resource)
        denial = policies.denials.get(request)
        if denial is None:
            denial = policies.denials[request] = _decide(policies.parsed, *request)
            if len(policies.denials) > MAX_DECISIONS:
                policies.denials.popitem(last=False)
        return denial


def read_policy(path: Path | None) -> CedarPolicy | None:
    """Return the policy in a file, or None if no path is given."""
    if path is None:
        return None
    return CedarPolicy(path)


def _decide(policies: cedarpy.PolicySet, tenant: str, action: Action, resource: Resource) -> str:
    kind = type(resource).__name__
    attributes = {name: value for name, value in asdict(resource).items() if name != "name"}
    entity = {"uid": {"type": kind, "id": resource.name}, "attrs": attributes, "parents": []}
    request: dict[str, Any] = {
        "principal": {"type": "Tenant", "id": tenant},
        "action": {"type": "Action", "id": action.value},
        "resource": entity["uid"],
        "context": {},
    }
    result = cedarpy.is_authorized(request, policies, [entity])
    if result.allowed:
        return ""
    names = result.diagnostics.id_annotations_by_reason
    forbidding = ", ".join(repr(names.get(policy_id) or policy_id) for policy_id in result.diagnostics.reasons)
    why = f"forbidden by {forbidding}" if forbidding else "no policy permits it"
    return f"{_subject(tenant, action, resource)}: {why}"


def _subject(tenant: str, action: Action, resource: Resource) -> str:
    return f"tenant {tenant!r} may not {_WANTS[action]} {resource.name[:SHOWN]!r}"


def _parse(data: bytes) -> _Policies:
    try:
        text = data.decode()
        checked = cedarpy.validate_policies(text, SCHEMA)
    except ValueError as error:
        raise InvalidRequest(f"cannot be parsed: {error}") from None
    if not checked:
        raise InvalidRequest(f"has a policy that is not valid: {'; '.join(map(str, checked.errors))}")
    return _Policies(cedarpy.PolicySet.from_str(text))
