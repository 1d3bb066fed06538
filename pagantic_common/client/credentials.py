"""The API key that a client sends, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pagantic_common.domain.defaults import is_loopback
from pagantic_common.domain.errors import InvalidRequest

KEY, KEY_FILE, PLAINTEXT = "PAGANTIC_API_KEY", "PAGANTIC_API_KEY_FILE", "PAGANTIC_PLAINTEXT_KEY"
MAX_CHARS = 4096


def credentials_for(address: str, api_key: str | None, environment: Mapping[str, str]) -> str:
    """Return what is sent as `authorization`; empty without a key.

    Raises InvalidRequest for a file that cannot be read, and for a key that would leave this machine in plain text.
    """
    key = (api_key or environment.get(KEY) or _read_file(environment.get(KEY_FILE))).strip()
    if not key:
        return ""
    if not key.isascii() or not key.isprintable() or len(key) > MAX_CHARS:
        raise InvalidRequest("the API key is not one line of printable ASCII")
    if not is_loopback(_host_of(address)) and environment.get(PLAINTEXT) != "1":
        raise InvalidRequest(
            f"the API key would be sent to {address} in plain text: set {PLAINTEXT}=1 where a proxy or a mesh encrypts "
            "the connection"
        )
    return f"Bearer {key}"


def _host_of(address: str) -> str:
    if address.startswith("unix:"):
        return address
    return address.rpartition("/")[2].rpartition(":")[0]


def _read_file(path: str | None) -> str:
    if not path:
        return ""
    try:
        with Path(path).expanduser().open(encoding="utf-8", errors="replace") as file:
            return file.readline(MAX_CHARS)
    except OSError as error:
        shown = "has a key instead of a path" if path.startswith("pag_") else f"{path!r} cannot be read"
        raise InvalidRequest(f"{KEY_FILE} {shown}: {error.strerror}") from None
