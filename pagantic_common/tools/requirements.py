"""Requirements of a tool for the machine that runs it: the network, a program or an environment variable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import InvalidRequest

_NAMED = re.compile(r"binary:(?P<binary>[A-Za-z0-9._+-]{1,128})|env:(?P<env>[A-Za-z_][A-Za-z0-9_]{0,127})")


class RequirementKind(StrEnum):
    """The kinds of requirements."""

    NETWORK = "network"
    BINARY = "binary"
    ENV = "env"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement. `name` names the program or the variable, and is empty for the network."""

    kind: RequirementKind
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Parse "network", "binary:NAME" or "env:NAME". Raises InvalidRequest for any other text."""
        if text == RequirementKind.NETWORK:
            return cls(RequirementKind.NETWORK)
        named = _NAMED.fullmatch(text)
        if named is None or named.lastgroup is None:
            raise InvalidRequest(f"requires has {text[:80]!r}: it takes network, binary:NAME and env:NAME")
        return cls(RequirementKind(named.lastgroup), named[named.lastgroup])
