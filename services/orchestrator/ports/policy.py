"""Tenant permissions, defined by the operator's policies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

DEFAULT_MODEL = "default"  # the policy name of the default model, for requests that do not name a model


class Action(StrEnum):
    """A tenant's action. The values are names in policies: do not change them."""

    INFER = "infer"
    CALL = "call"
    RETRIEVE = "retrieve"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Model:
    """A model to infer with."""

    name: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool to call; `safety` is its class, in lower case."""

    name: str
    safety: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection to retrieve from, or to change."""

    name: str


Resource = Model | Tool | Collection


class Policy(Protocol):
    """Decides."""

    def find_denial(self, tenant: str, action: Action, resource: Resource) -> str:
        """Return why a tenant may not do this; empty when it may."""
