"""Reads the configured APIs, each with a document, an address and secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, StringConstraints

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.storage.json_file import read_json_file
from services.tools.adapters.file_entry import FileEntry
from services.tools.core.allowlists import HostAllowlist
from services.tools.core.openapi.parameters import Supplied
from services.tools.core.servers import HttpTransport

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]
# These headers could declare another type or length of the body, and thus smuggle in a request that the deployment did
# not send.
_HEADERS_OF_BODIES = frozenset({"content-type", "content-length", "transfer-encoding"})
_Secret = Annotated[SecretStr, Field(max_length=8192)]


class _Api(FileEntry):
    document: Path
    url: str
    headers: dict[str, _Secret] = Field(default_factory=dict)
    query: dict[str, _Secret] = Field(default_factory=dict)
    operations: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    disabled: bool = False
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None


class _File(FileEntry):
    apis: dict[_Name, _Api]


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """An API with its operations as tools, selected by name with `patterns`. Requests go only to the host of `url`."""

    name: str
    document: Path
    url: str
    hosts: HostAllowlist
    headers: Mapping[str, str] = field(repr=False)
    query: Mapping[str, str] = field(repr=False)
    patterns: tuple[str, ...]
    timeout_s: float | None

    @property
    def supplied(self) -> Supplied:
        """The names of the headers and query parameters that every request includes."""
        return Supplied(frozenset(name.lower() for name in self.headers), frozenset(self.query))


def read_apis(path: Path, variables: Mapping[str, str]) -> list[ApiSpec]:
    """Return the enabled APIs of a file. Their documents are relative to the file. Raises InvalidRequest."""
    content = read_json_file(path, _File, "OPENAPI", variables)
    return [_spec_of(name, api, path.parent) for name, api in content.apis.items() if not api.disabled]


def _spec_of(name: str, api: _Api, folder: Path) -> ApiSpec:
    try:
        server = HttpTransport.parse(api.url)
    except InvalidRequest as error:
        raise InvalidRequest(f"OPENAPI: api {name!r}: {error}") from None
    parts = urlsplit(api.url)
    if parts.query or parts.fragment:
        raise InvalidRequest(f"OPENAPI: api {name!r}: the url must have no query and no fragment: set 'query'")
    headers = {header: value.get_secret_value() for header, value in api.headers.items()}
    for header, value in headers.items():
        if header.lower() in _HEADERS_OF_BODIES:
            raise InvalidRequest(
                f"OPENAPI: api {name!r}: header {header!r} must not be set: it comes from the document and the body"
            )
        if not (f"{header}{value}".isascii() and f"{header}{value}".isprintable()):
            raise InvalidRequest(f"OPENAPI: api {name!r}: header {header!r} must have printable ASCII characters alone")
    return ApiSpec(
        name=name,
        document=folder / api.document,
        url=api.url.rstrip("/"),
        hosts=HostAllowlist().with_inner_hosts((server.host, server.port)),
        headers=headers,
        query={key: value.get_secret_value() for key, value in api.query.items()},
        patterns=api.operations,
        timeout_s=api.timeout_seconds,
    )
