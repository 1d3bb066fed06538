"""Finds the API key that a client sends: an argument, an environment variable, or a line of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pagantic_common.domain.defaults import path_of
from pagantic_common.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from pagantic_common.rpc.access.tls.calling import Target

KEY, KEY_FILE, PLAINTEXT = "PAGANTIC_API_KEY", "PAGANTIC_API_KEY_FILE", "PAGANTIC_PLAINTEXT_KEY"
MAX_CHARS = 4096


def has_key(environment: Mapping[str, str]) -> bool:
    """Return whether the environment contains an API key or names the file of a key."""
    return bool(environment.get(KEY) or environment.get(KEY_FILE))


def credentials_for(target: Target, api_key: str | None, environment: Mapping[str, str]) -> str:
    """Return the value of `authorization` to send, or an empty string without a key.

    Raises InvalidRequest if the key file is unreadable, or if the key would leave this machine in plain text.
    """
    key = (api_key or environment.get(KEY) or _read_file(environment.get(KEY_FILE))).strip()
    if not key:
        return ""
    if not key.isascii() or not key.isprintable() or len(key) > MAX_CHARS:
        raise InvalidRequest("the API key is not one line of printable ASCII")
    check_privacy(target, "the API key", environment)
    return f"Bearer {key}"


def check_privacy(target: Target, secret: str, environment: Mapping[str, str]) -> None:
    """Raise InvalidRequest, which names the secret, if it would leave this machine in plain text."""
    if not target.is_private and environment.get(PLAINTEXT) != "1":
        raise InvalidRequest(
            f"{secret} would be sent to {target.address} in plain text: call https://{target.address}, or set "
            f"{PLAINTEXT}=1 where a proxy or a mesh encrypts the connection"
        )


def _read_file(path: str | None) -> str:
    if not path:
        return ""
    try:
        with path_of(KEY_FILE, path).open(encoding="utf-8", errors="replace") as file:
            return file.readline(MAX_CHARS)
    except OSError as error:
        shown = "has a key instead of a path" if path.startswith("pag_") else f"{path!r} cannot be read"
        raise InvalidRequest(f"{KEY_FILE} {shown}: {error.strerror}") from None
