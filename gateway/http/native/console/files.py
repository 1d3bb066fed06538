"""Serves the console's files, with their types and headers, to any request that names this host."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.operations import DOCUMENT, Access, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient

INDEX = "index.html"
# The index contains this word in place of the name of the other files' folder. That name is a digest of all files, so
# a page never mixes files of different versions.
FOLDER = "FOLDER"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# The page loads scripts and styles only from this gateway, and its scripts must not turn text into markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_ASK_AGAIN = "no-cache"
_KEEP_A_DAY = "private, max-age=86400, immutable"


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file with its headers."""

    body: bytes
    headers: Mapping[str, str]

    def is_known(self, if_none_match: str) -> bool:
        """Return whether the client already has this file, according to the tags in its If-None-Match header."""
        return self.headers["etag"] in [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]


def served_files(files: Mapping[str, bytes]) -> dict[str, ServedFile]:
    """Return the console's files by path: the index at `/`, and the others in a folder named after their digest."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(files[name]), files[name]))
    folder = f"/console/{digest.hexdigest()[:16]}"
    served = {"/": _served(INDEX, files[INDEX].replace(FOLDER.encode(), folder.encode()), _ASK_AGAIN)}
    for name, body in files.items():
        if name != INDEX:
            served[f"{folder}/{name}"] = _served(name, body, _KEEP_A_DAY)
    return served


def _served(name: str, body: bytes, caching: str) -> ServedFile:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    kind = _TYPES[name.rpartition(".")[2]]
    return ServedFile(body, {**_HEADERS, "content-type": kind, "cache-control": caching, "etag": tag})


def console_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of the console, or an empty list if the settings turn the console off."""
    if not settings.console:
        return []
    folder = Path(__file__).with_name("static")
    content = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return [_operation(path, file) for path, file in served_files(content).items()]


def _operation(path: str, file: ServedFile) -> Operation:
    async def show(_client: AsyncClient, request: Request, _body: bytes) -> Answer:
        """Get a file of the console."""
        if file.is_known(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, headers=file.headers)

    return Operation(DOCUMENT, f"GET {path}", show, "getConsole", text_type="text/html", access=Access.OPEN)
