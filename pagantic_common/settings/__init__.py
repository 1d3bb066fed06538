"""The base class of every service's settings, and the functions that load settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from pagantic_common.domain import defaults
from pagantic_common.domain.defaults import HOST, MAX_MESSAGE_BYTES, is_loopback, local_address
from pagantic_common.storage.settings_file import origin_of
from pagantic_common.storage.settings_names import AREAS, DOORS, PREFIX, area_prefix, find_unknown

EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h

SettingsT = TypeVar("SettingsT", bound=BaseSettings)
NonEmpty = Annotated[str, Field(min_length=1)]


class Auth(StrEnum):
    """The methods by which a service authenticates its callers."""

    LOCAL = "local"
    NONE = "none"
    KEYS = "keys"
    TOKENS = "tokens"


class Tls(StrEnum):
    """The methods by which a service's connections are encrypted."""

    OFF = "off"
    FILES = "files"
    MESH = "mesh"


class LogFormat(StrEnum):
    """The format of log lines."""

    JSON = "json"
    TEXT = "text"


class _SharedEnvironment(EnvSettingsSource):
    """Reads the variables that all services share, named PAGANTIC_<NAME>."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the value of a shared setting, or None for any other setting."""
        if field_name not in SHARED_SETTINGS:
            return None, field_name, False
        return super().get_field_value(field, field_name)


class ServiceSettings(BaseSettings):
    """The settings of every service, read from the environment as PAGANTIC_<AREA>_<NAME>.

    Settings that services can share are also read as PAGANTIC_<NAME>. The variable of the area takes precedence.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    known_auth: ClassVar[tuple[Auth, ...]] = (Auth.LOCAL, Auth.NONE)

    host: str = Field(HOST, description="address to listen on; 0.0.0.0 in a container")
    auth: Auth = Field(
        Auth.LOCAL,
        validate_default=True,
        description="who may call: local (this machine, everybody on it), none (everybody), keys (API keys), or tokens",
    )
    tls: Tls = Field(
        Tls.OFF,
        validate_default=True,
        description="what encrypts connections: off (nothing), files (certificates), or mesh (what runs around it)",
    )
    tls_cert_file: Path | None = Field(None, validate_default=True, description="PEM file of its certificate")
    tls_key_file: Path | None = Field(None, validate_default=True, description="PEM file of the certificate's key")
    tls_ca_file: Path | None = Field(
        None, validate_default=True, description="PEM file of the authorities of the services' certificates"
    )
    port: int = Field(ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_message_bytes: int = Field(MAX_MESSAGE_BYTES, ge=1024, description="largest message taken or sent")
    max_concurrent_rpcs: int = Field(1024, ge=1, description="calls beyond this are RESOURCE_EXHAUSTED")
    max_concurrent_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="bytes of the requests of running calls; more is RESOURCE_EXHAUSTED"
    )
    max_concurrent_rpcs_per_host: int = Field(0, ge=0, description="of them, calls from one host; 0 is half")
    max_silence_s: float = Field(
        30.0, gt=0, le=3600, allow_inf_nan=False, description="longest wait for the next part of an upload"
    )
    max_upload_s: float = Field(
        3600.0, gt=0, le=86_400, allow_inf_nan=False, description="longest wait for all parts of an upload together"
    )
    drain_s: float = Field(10.0, ge=0, description="how long running calls may go on after SIGTERM")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="least level logged")
    log_format: LogFormat = Field(LogFormat.JSON, description="json or text")
    otlp_endpoint: str = Field(
        "", description="host:port or https://host:port of an OpenTelemetry collector; empty is none"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port where Prometheus reads metrics; 0 is none")
    admin_port: int = Field(0, ge=0, le=65535, description="port for probes: health and channelz over gRPC; 0 is none")
    reflection: bool | None = Field(None, description="serve gRPC reflection; by default only on a loopback address")

    @field_validator("auth")
    @classmethod
    def _check_auth(cls, auth: Auth, info: ValidationInfo) -> Auth:
        if auth not in cls.known_auth:
            raise ValueError(f"this service knows {', '.join(cls.known_auth)} only")
        host = str(info.data.get("host", HOST))
        if auth is Auth.LOCAL and not is_loopback(host):
            others = " or ".join(way for way in cls.known_auth if way is not Auth.LOCAL)
            raise ValueError(f"others can call it on HOST {host!r}: set AUTH to {others}, or listen on 127.0.0.1")
        return auth

    @field_validator("tls")
    @classmethod
    def _check_tls(cls, tls: Tls, info: ValidationInfo) -> Tls:
        auth, host = info.data.get("auth"), str(info.data.get("host", HOST))
        if tls is Tls.OFF and auth in (Auth.KEYS, Auth.TOKENS) and not is_loopback(host):
            raise ValueError(
                f"others can call it on HOST {host!r}, and AUTH={auth} would have their secrets cross the network in "
                "plain text: set TLS to files, or to mesh where a mesh or a gateway encrypts"
            )
        return tls

    @field_validator("tls_cert_file", "tls_key_file", "tls_ca_file", mode="before")
    @classmethod
    def _unset_if_empty(cls, value: Any) -> Any:
        return value or None

    @field_validator("tls_cert_file", "tls_key_file", "tls_ca_file")
    @classmethod
    def _check_tls_file(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None and info.data.get("tls") is Tls.FILES:
            raise ValueError("TLS=files needs this file")
        return path

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the variables of this service before the shared variables."""
        shared = _SharedEnvironment(settings_cls, env_prefix=PREFIX)
        return init_settings, env_settings, shared, dotenv_settings, file_secret_settings

    @property
    def max_received_bytes(self) -> int:
        """Maximum size of a message that the service's port accepts, in bytes."""
        return self.max_message_bytes

    @property
    def max_calls_per_host(self) -> int:
        """Maximum number of concurrent calls from a single host."""
        return self.max_concurrent_rpcs_per_host or max(1, self.max_concurrent_rpcs // 2)

    @property
    def requires_certificate(self) -> bool:
        """Whether callers must present a certificate if connections use TLS from files."""
        return True

    @property
    def caller_ca_file(self) -> Path | None:
        """The file of additional authorities for callers' certificates, or None.

        The authorities of the services are trusted in any case.
        """
        return None

    @property
    def serves_reflection(self) -> bool:
        """Whether the service's port describes its contracts to tools such as grpcurl."""
        if self.reflection is None:
            return self.is_local
        return self.reflection

    @property
    def is_local(self) -> bool:
        """Whether the service can be called only from this machine."""
        return is_loopback(self.host)


class InnerSettings(ServiceSettings):
    """The settings of every service behind the orchestrator."""

    known_auth: ClassVar[tuple[Auth, ...]] = (Auth.LOCAL, Auth.NONE, Auth.TOKENS)

    verifying_keys_file: Path | None = Field(
        None,
        validate_default=True,
        description="PEM file of the orchestrators' public keys, which verify tenant tokens; AUTH=tokens needs it",
    )
    spiffe_prefix: str = Field(
        "spiffe://cluster.local/ns/pagantic/sa/",
        pattern="^spiffe://[^?#]+/$",
        description="beginning of the SPIFFE ids of the services' certificates; the name of the service follows",
    )

    @field_validator("verifying_keys_file", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    @field_validator("verifying_keys_file")
    @classmethod
    def _check_verifying_keys_file(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None and info.data.get("auth") is Auth.TOKENS:
            raise ValueError("AUTH=tokens needs a file of public keys")
        return path


class CallerSettings(ServiceSettings):
    """The settings of every service that calls other services. All such services call inference."""

    connect_patience_s: float = Field(
        10.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="how long a call waits for a service that starts or restarts, within its deadline",
    )
    inference_address: str = Field(
        local_address("inference"),
        min_length=1,
        description="address of the inference service; dns:///host:port is all of its replicas",
    )
    model_pools: dict[NonEmpty, NonEmpty] = Field(
        default_factory=dict,
        max_length=64,
        description="models that other inference services serve, as JSON: alias to the service's address",
    )


# Services can share all settings except addresses and ports, because two services cannot listen on the same port.
SHARED_SETTINGS = frozenset(CallerSettings.model_fields | InnerSettings.model_fields) - {
    "port",
    "metrics_port",
    "admin_port",
    "inference_address",
}


def known_names(cls: type[BaseSettings]) -> frozenset[str]:
    """Return the names of the environment variables that hold these settings."""
    prefix = cls.model_config.get("env_prefix", "")
    own = {f"{prefix}{name}".upper() for name in cls.model_fields}
    return frozenset(own | {f"{PREFIX}{name}".upper() for name in SHARED_SETTINGS})


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path of the state folder: PAGANTIC_STATE, or `pagantic` in the user's state home."""
    return defaults.state_folder(environment)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of pagantic's folder in the user's cache."""
    return defaults.cache_folder(environment)


def load_settings(cls: type[SettingsT]) -> SettingsT:
    """Read settings from the environment. On invalid values or unknown names, print them to stderr and exit with 78."""
    settings, problems = read_settings(cls)
    if settings is not None:
        return settings
    for problem in problems:
        print(f"configuration error: {problem}", file=sys.stderr)  # noqa: T201
    sys.exit(EXIT_CONFIG)


def read_settings(cls: type[SettingsT]) -> tuple[SettingsT | None, list[str]]:
    """Read settings from the environment, and return them with an empty list of problems.

    If that fails, return None and a line for each invalid value or unknown name.
    """
    prefix = cls.model_config.get("env_prefix", "")
    try:
        problems = _unknown_variables(cls, prefix)
        if not problems:
            return cls(), []
    except ValidationError as error:
        problems = _wrong_values(error, prefix)
    except SettingsError as error:
        problems = [_describe_unreadable(error, prefix)]
    return None, problems


def _unknown_variables(cls: type[BaseSettings], prefix: str) -> list[str]:
    areas = [area for area in (*AREAS, *DOORS) if area_prefix(area) == prefix]
    if not areas:
        return []
    return find_unknown(os.environ, known_names(cls), areas)


def _wrong_values(error: ValidationError, prefix: str) -> list[str]:
    """Return a line for each variable with an invalid value, stating every reason."""
    reasons: dict[str, list[str]] = {}
    for problem in error.errors():
        field = "".join(str(part) for part in problem["loc"][:1])
        # An error without a field means that the values of several fields are inconsistent.
        variable = variable_of(prefix, field.upper()) if field else f"settings {prefix}…"
        reasons.setdefault(variable, []).append(_reason_of(problem))
    return [f"{origin_of(variable)}{variable}: {' or '.join(several)}" for variable, several in reasons.items()]


def _reason_of(problem: ErrorDetails) -> str:
    if type(problem["input"]) is not str and (own := problem.get("ctx", {}).get("error")):
        return str(own)  # The error concerns a default, which the user did not write.
    reason = str(problem.get("ctx", {}).get("error", problem["msg"].lower()))
    if _may_show(problem["input"]):
        return f"{reason}, not {problem['input']!r}"
    return reason


def _describe_unreadable(error: SettingsError, prefix: str) -> str:
    field = re.search(r'field "(\w+)"', str(error))
    if field is None:
        return f"{prefix}: it must be JSON"
    variable = variable_of(prefix, field[1].upper())
    return f"{origin_of(variable)}{variable}: it must be JSON"


def _may_show(value: object) -> bool:
    """Return whether a refused value may be printed. A URL may not be printed, because it may contain a password."""
    return not isinstance(value, dict) and "://" not in str(value)


def variable_of(prefix: str, name: str) -> str:
    """Return the variable for a setting: the service's variable, or the shared variable if only that is set."""
    own, shared = f"{prefix}{name}", f"{PREFIX}{name}"
    if own not in os.environ and shared in os.environ:
        return shared
    return own
