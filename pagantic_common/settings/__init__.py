"""Base of every service's settings, and how they are loaded."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from pagantic_common.settings.names import AREAS, PREFIX, area_prefix, find_unknown

EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


class _SharedEnvironment(EnvSettingsSource):
    """Reads what is set once for every service, PAGANTIC_<NAME>."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the value of a shared setting; None for others."""
        if field_name not in SHARED_SETTINGS:
            return None, field_name, False
        return super().get_field_value(field, field_name)


class ServiceSettings(BaseSettings):
    """What every service has. Each is read from the environment as PAGANTIC_<AREA>_<NAME>.

    What services can share is read as PAGANTIC_<NAME> where the area's own is not set.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 in a container")
    port: int = Field(ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_message_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest message taken or sent")
    max_concurrent_rpcs: int = Field(1024, ge=1, description="calls beyond this are RESOURCE_EXHAUSTED")
    max_concurrent_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="bytes of the requests of running calls; more is RESOURCE_EXHAUSTED"
    )
    max_concurrent_rpcs_per_host: int = Field(0, ge=0, description="of them, calls from one host; 0 is half")
    max_streams_per_connection: int = Field(
        1024, ge=2, description="calls at once on one connection, a health watch among them; more wait"
    )
    drain_s: float = Field(10.0, ge=0, description="how long running calls may go on after SIGTERM")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="least level logged")
    log_format: LogFormat = Field(LogFormat.JSON, description="json or text")
    otlp_endpoint: str = Field("", description="host:port of an OpenTelemetry collector; empty exports nothing")
    metrics_port: int = Field(0, ge=0, le=65535, description="port where Prometheus reads metrics; 0 is none")
    admin_port: int = Field(0, ge=0, le=65535, description="port for probes: health and channelz over gRPC; 0 is none")
    reflection: bool | None = Field(None, description="serve gRPC reflection; by default only on a loopback address")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put what is set for every service behind what is set for this one."""
        shared = _SharedEnvironment(settings_cls, env_prefix=PREFIX)
        return init_settings, env_settings, shared, dotenv_settings, file_secret_settings

    @property
    def max_received_bytes(self) -> int:
        """Largest message that the service's port takes."""
        return self.max_message_bytes

    @property
    def max_calls_per_host(self) -> int:
        """Most calls at once from one host."""
        return self.max_concurrent_rpcs_per_host or max(1, self.max_concurrent_rpcs // 2)

    @property
    def serves_reflection(self) -> bool:
        """Whether the service's port describes its contracts to tools such as grpcurl."""
        return self.is_local if self.reflection is None else self.reflection

    @property
    def is_local(self) -> bool:
        """Whether only this machine can call the service."""
        return is_loopback(self.host)


class CallerSettings(ServiceSettings):
    """What every service has that calls others."""

    connect_patience_s: float = Field(
        10.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="how long a call waits for a service that starts or restarts, within its deadline",
    )


# What all services may have in common; two that listen on one port would not.
SHARED_SETTINGS = frozenset(CallerSettings.model_fields) - {"port", "metrics_port", "admin_port"}


def is_loopback(host: str) -> bool:
    """Tell whether a listening address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("unix:")


def known_names(cls: type[BaseSettings]) -> frozenset[str]:
    """Return the names of the variables that these settings are read from."""
    prefix = cls.model_config.get("env_prefix", "")
    own = {f"{prefix}{name}".upper() for name in cls.model_fields}
    return frozenset(own | {f"{PREFIX}{name}".upper() for name in SHARED_SETTINGS})


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for state, wherever one stands: PAGANTIC_STATE, or pagantic in the user's state home."""
    if given := environment.get("PAGANTIC_STATE"):
        return Path(given).expanduser().absolute()
    home = environment.get("XDG_STATE_HOME")
    return Path(home or home_folder() / ".local" / "state") / "pagantic"


def home_folder() -> Path:
    """Return the user's home; the current folder for a user that has none, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path.cwd()


def load_settings(cls: type[SettingsT]) -> SettingsT:
    """Read settings from the environment; on a wrong value or name say so on stderr and exit with 78."""
    prefix = cls.model_config.get("env_prefix", "")
    areas = [area for area in AREAS if area_prefix(area) == prefix]
    try:
        if not (unknown := find_unknown(os.environ, known_names(cls), areas) if areas else []):
            return cls()
        for line in unknown:
            print(f"configuration error: {line}", file=sys.stderr)  # noqa: T201
    except ValidationError as error:
        problems: dict[str, list[str]] = {}
        for problem in error.errors():
            name = _variable_of(prefix, str(problem["loc"][0]).upper() if problem["loc"] else "")
            given = f", not {problem['input']!r}" if _may_show(problem["input"]) else ""
            problems.setdefault(name, []).append(f"{problem['msg'].lower()}{given}")
        for variable, reasons in problems.items():
            print(f"configuration error: {variable}: {' or '.join(reasons)}", file=sys.stderr)  # noqa: T201
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        name = f"{prefix}{field[1].upper()}" if field else prefix
        print(f"configuration error: {name}: it must be JSON", file=sys.stderr)  # noqa: T201
    sys.exit(EXIT_CONFIG)


def _may_show(value: object) -> bool:
    """Tell whether a refused value may be printed: a URL may hold a password."""
    return not isinstance(value, dict) and "://" not in str(value)


def _variable_of(prefix: str, name: str) -> str:
    """Return the variable that a setting was read from: the service's own, or that of all services."""
    is_shared = f"{prefix}{name}" not in os.environ and f"{PREFIX}{name}" in os.environ
    return f"{PREFIX}{name}" if is_shared else f"{prefix}{name}"
