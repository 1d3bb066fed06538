"""The services of a machine: their addresses, and the environment by which they find each other.

The HTTP gateway is also an area if `pagantic up` starts it, but no service calls it.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic_settings import BaseSettings

from pagantic_common.domain.addresses import address_of, bare_host, caller_address
from pagantic_common.domain.defaults import HOST, HTTP_PORT, IDENTITY_VARIABLES, PORTS, has_own_identity
from pagantic_common.storage.settings_file import origin_of

MAX_PORT = 65535
BACKGROUND_VARIABLE = "PAGANTIC_CONTEXT_SIGNING_KEY_FILE"  # The two services may share the key on a single machine.
GATEWAY = "http"
GATEWAY_VARIABLE = "PAGANTIC_SERVE_HTTP"
GATEWAY_PREFIX = "PAGANTIC_HTTP_"
START_LIMIT_VARIABLE = "PAGANTIC_START_LIMIT_S"
DEFAULT_START_LIMIT_S = 120.0
_SWITCH = {"": False, "0": False, "off": False, "false": False, "1": True, "on": True, "true": True}


class ConfigurationError(Exception):
    """A setting has an invalid value. The message names the setting."""


@dataclass(frozen=True, slots=True)
class Area:
    """A service: its name, the host on which it listens, and its port."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """The address for callers on this machine."""
        if self.name == GATEWAY and bare_host(self.host) == "::":
            # The gateway's server binds `::` to IPv6 only, while gRPC's server binds it to both versions.
            return address_of("::1", self.port)
        return caller_address(self.host, self.port)


def read_areas(environment: Mapping[str, str] = os.environ) -> tuple[Area, ...]:
    """Return all services with PAGANTIC_<AREA>_HOST and _PORT applied. Raises ConfigurationError for invalid values."""
    areas = tuple(_read_area(name, port, environment) for name, port in PORTS.items())
    for one, other in itertools.combinations(areas, 2):
        _refuse_one_port(one, other)
    return areas


def read_gateway(environment: Mapping[str, str] = os.environ) -> tuple[Area, ...]:
    """Return the HTTP gateway, or an empty tuple if the settings do not start it. Raises ConfigurationError."""
    setting = environment.get(GATEWAY_VARIABLE, "")
    is_on = read_switch(setting)
    if is_on is None:
        origin = origin_of(GATEWAY_VARIABLE, environment)
        raise ConfigurationError(f"{origin}{GATEWAY_VARIABLE} is {setting!r}: it must be on or off")
    if not is_on:
        return ()
    host = environment.get("PAGANTIC_HTTP_HOST") or HOST
    gateway = Area(GATEWAY, host, _read_port(GATEWAY, HTTP_PORT, environment))
    for area in read_areas(environment):
        _refuse_one_port(area, gateway)
    return (gateway,)


def door_settings() -> dict[str, type[BaseSettings]]:
    """Return the settings classes of the gateway's programs, including GATEWAY, by name."""
    # Imported here, because most commands need no code of the gateway.
    from gateway.http.settings import HttpSettings  # noqa: PLC0415
    from gateway.mcp.settings import McpSettings  # noqa: PLC0415

    return {GATEWAY: HttpSettings, "mcp": McpSettings}


def read_switch(given: str) -> bool | None:
    """Parse a value of PAGANTIC_SERVE_HTTP: True for on, False for off, or None if the value is invalid."""
    return _SWITCH.get(given.lower())


def read_start_limit(environment: Mapping[str, str] = os.environ) -> float:
    """Return the maximum time without activity during a start, in seconds. Raises ConfigurationError."""
    text = environment.get(START_LIMIT_VARIABLE) or str(DEFAULT_START_LIMIT_S)
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = 0.0
    if not 1 <= limit_s < math.inf:
        origin = origin_of(START_LIMIT_VARIABLE, environment)
        raise ConfigurationError(
            f"{origin}{START_LIMIT_VARIABLE} is {text!r}: it must be a number of seconds, at least 1"
        )
    return limit_s


def _refuse_one_port(one: Area, other: Area) -> None:
    if one.port == other.port:
        raise ConfigurationError(f"{one.name} and {other.name} both have port {one.port}: set another for one of them")


def _read_area(name: str, default_port: int, environment: Mapping[str, str]) -> Area:
    host = environment.get(f"PAGANTIC_{name.upper()}_HOST") or environment.get("PAGANTIC_HOST") or HOST
    return Area(name, host, _read_port(name, default_port, environment))


def _read_port(name: str, default_port: int, environment: Mapping[str, str]) -> int:
    variable = f"PAGANTIC_{name.upper()}_PORT"
    text = environment.get(variable) or str(default_port)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PORT:
        origin = origin_of(variable, environment)
        raise ConfigurationError(f"{origin}{variable} is {text!r}: it must be a number between 1 and {MAX_PORT}")
    return int(text)


def child_environment(areas: tuple[Area, ...], state: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the services, with defaults for missing variables from `areas` and `state`.

    If callers need API keys, the keys of tenant tokens are also created.
    """
    address_of = {area.name: area.address for area in areas}
    defaults = {
        f"PAGANTIC_ORCHESTRATOR_{name.upper()}_ADDRESS": address
        for name, address in address_of.items()
        if name != "orchestrator"
    }
    for name in ("CONTEXT", "CONSTRAINT", "RERANK"):
        defaults[f"PAGANTIC_{name}_INFERENCE_ADDRESS"] = address_of["inference"]
    defaults["PAGANTIC_ORCHESTRATOR_JOURNAL_URL"] = f"sqlite:///{state / 'orchestrator' / 'journal.sqlite3'}"
    defaults["PAGANTIC_CONTEXT_DATA_FOLDER"] = str(state / "context")
    variables = {name: value for name, value in environment.items() if value or name not in IDENTITY_VARIABLES}
    return {**defaults, **_tenant_token_keys(state, variables), **variables}


def _tenant_token_keys(state: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the key variables of tenant tokens, or an empty mapping if the services do not use their own keys."""
    if not has_own_identity(given):
        return {}
    from pagantic_common.rpc.access.tenant_tokens import write_key_pair  # noqa: PLC0415 - slow, and for API keys alone

    signing, verifying = map(str, write_key_pair(state / "identity"))
    return {**dict(zip(IDENTITY_VARIABLES, (signing, verifying), strict=True)), BACKGROUND_VARIABLE: signing}
