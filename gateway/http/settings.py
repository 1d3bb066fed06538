"""The settings of the HTTP gateway."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gateway.web.settings import DoorSettings
from pagantic_common.domain.defaults import HTTP_PORT


class HttpSettings(DoorSettings):
    """The settings of the HTTP gateway, read from the environment as PAGANTIC_HTTP_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_HTTP_")

    port: int = Field(HTTP_PORT, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    call_s: float = Field(600.0, gt=0, le=3600, description="longest time of one request, seconds")
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest body of a request")
    max_file_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="largest file that a request stores in a collection, in bytes"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port where Prometheus reads metrics; 0 is none")
    otlp_endpoint: str = Field(
        "", description="host:port or https://host:port of an OpenTelemetry collector; empty is none"
    )
    console: bool = Field(True, description="whether `/` is the console, a web page for people")
    models: dict[str, str] = Field(
        default_factory=dict,
        description='names that clients send, and the aliases that they stand for, as JSON; "*" is any other name, '
        "an empty alias the default model",
    )

    moderation_model: str | None = Field(
        None, description="alias of the model that judges for /v1/moderations; an empty one is the default model"
    )
    moderation_calibration: str = Field("", description="name of the calibration of its decisions; empty is none")
    moderation_threshold: float = Field(0.5, gt=0, le=1, description="probability from which a category is flagged")

    def alias_of(self, name: str) -> str:
        """Return the alias for a name. A name that is not listed is itself an alias."""
        return self.models.get(name, self.models.get("*", name))
