"""Base of every service's settings, and how they are loaded."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


class ServiceSettings(BaseSettings):
    """What every service has. Each is read from the environment as PAGANTIC_<AREA>_<NAME>."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 in a container")
    port: int = Field(ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_message_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest message taken or sent")
    max_concurrent_rpcs: int = Field(1024, ge=1, description="calls beyond this are RESOURCE_EXHAUSTED")
    drain_s: float = Field(10.0, ge=0, description="how long running calls may go on after SIGTERM")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="least level logged")
    log_format: LogFormat = Field(LogFormat.JSON, description="json or text")
    otlp_endpoint: str = Field("", description="host:port of an OpenTelemetry collector; empty exports nothing")
    metrics_port: int = Field(0, ge=0, le=65535, description="port where Prometheus reads metrics; 0 is none")


class CallerSettings(ServiceSettings):
    """What every service has that calls others."""

    connect_patience_s: float = Field(
        10.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="how long a call waits for a service that starts or restarts, within its deadline",
    )


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
    """Read settings from the environment; on a wrong value name it on stderr and exit with 78."""
    prefix = cls.model_config.get("env_prefix", "")
    try:
        return cls()
    except ValidationError as error:
        problems: dict[str, list[str]] = {}
        for problem in error.errors():
            name = str(problem["loc"][0]).upper() if problem["loc"] else ""
            given = f", not {problem['input']!r}" if not isinstance(problem["input"], dict) else ""
            problems.setdefault(f"{prefix}{name}", []).append(f"{problem['msg'].lower()}{given}")
        for name, reasons in problems.items():
            print(f"configuration error: {name}: {' or '.join(reasons)}", file=sys.stderr)  # noqa: T201
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        name = f"{prefix}{field[1].upper()}" if field else prefix
        print(f"configuration error: {name}: it must be JSON", file=sys.stderr)  # noqa: T201
    sys.exit(EXIT_CONFIG)
