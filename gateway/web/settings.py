"""The settings that all HTTP servers of the gateway share."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pagantic_common.domain.defaults import HOST, is_loopback
from pagantic_common.settings import Auth, Tls

_AUTH = (Auth.LOCAL, Auth.NONE, Auth.KEYS)
_TLS = (Tls.OFF, Tls.MESH)
_Names = Annotated[tuple[str, ...], NoDecode]


class DoorSettings(BaseSettings):
    """The settings of an HTTP server. Each server has its own variable prefix and port."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    host: str = Field(HOST, description="address to listen on")
    port: int = Field(ge=0, le=65535, description="port to listen on; 0 takes a free one")
    admin_port: int = Field(0, ge=0, le=65535, description="port for probes: health over gRPC; 0 is none")
    auth: Auth = Field(
        Auth.LOCAL,
        description="who may call: local (this machine, everybody on it), none (everybody), or keys (API keys)",
    )
    tls: Tls = Field(Tls.OFF, description="what encrypts connections: off (nothing), or mesh (what runs around it)")
    allowed_hosts: _Names = Field((), description="further values of the header Host, without port, comma-separated")
    allowed_origins: _Names = Field((), description="further values of the header Origin, comma-separated")
    read_s: float = Field(10.0, gt=0, le=600, description="longest time to read a request's head or its body, seconds")
    max_streams: int = Field(256, ge=1, description="HTTP requests and streams at once; more are refused")
    max_connections: int = Field(
        512, ge=1, description="HTTP connections at once; one more replaces a silent one or is closed"
    )
    max_bodies_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="most bytes of the bodies and large answers of running requests together"
    )
    drain_s: float = Field(5.0, ge=0, le=600, description="how long running calls may go on after SIGTERM, seconds")

    @classmethod
    def variable(cls, name: str) -> str:
        """Return the environment variable of a setting."""
        return f"{cls.model_config['env_prefix']}{name.upper()}"

    @field_validator("allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("auth")
    @classmethod
    def _check_auth(cls, auth: Auth) -> Auth:
        if auth not in _AUTH:
            raise ValueError(f"this server knows {', '.join(_AUTH)} only")
        return auth

    @field_validator("tls")
    @classmethod
    def _check_tls(cls, tls: Tls) -> Tls:
        if tls not in _TLS:
            raise ValueError(f"this server knows {', '.join(_TLS)} only: set mesh where a proxy does TLS")
        return tls

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        """Reject settings that would admit remote callers without a key, or send keys in plain text."""
        if is_loopback(self.host):
            return self
        if self.auth is Auth.LOCAL:
            raise ValueError(
                f"others can call it on HOST {self.host!r}: set AUTH to keys or none, or listen on 127.0.0.1"
            )
        if self.auth is Auth.KEYS and self.tls is Tls.OFF:
            raise ValueError(
                f"others can call it on HOST {self.host!r}, and AUTH=keys would have their keys cross the network in "
                "plain text: set TLS to mesh where a proxy or a mesh encrypts"
            )
        return self
