"""The permissions of tenants, as defined by the operator's policies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

DEFAULT_MODEL = "default"  # name of the default model in policies, including for requests that name no model


class Action(StrEnum):
    """An action of a tenant. The values are names in policies: do not change them."""

    INFER = "infer"
    CALL = "call"
    RETRIEVE = "retrieve"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a tenant uses."""

    name: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a tenant calls. `safety` is its safety class in lower case."""

    name: str
    safety: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection that a tenant retrieves from or changes."""

    name: str


Resource = Model | Tool | Collection


class Policy(Protocol):
    """Decides whether tenants may perform actions."""

    def find_denial(self, tenant: str, action: Action, resource: Resource) -> str:
        """Return the reason that a tenant may not perform an action, or an empty string if the action is permitted."""
