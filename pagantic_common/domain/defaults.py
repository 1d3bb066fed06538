"""Defaults that all programs of the system share: ports, addresses, folders, sizes and durations."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pagantic_common.domain.errors import InvalidRequest

HOST: Final = "127.0.0.1"
PORTS: Final = {
    "orchestrator": 50051,
    "inference": 50052,
    "constraint": 50053,
    "context": 50054,
    "rerank": 50055,
    "tools": 50056,
}
HTTP_PORT: Final = 8080
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
REQUEST_TIMEOUT_S: Final = 120.0
# The largest number of tokens that a model may write to judge an output. Budgets reserve the same number.
MAX_VERDICT_TOKENS: Final = 704
EMBEDDING_MODEL: Final = "all-MiniLM-L6-v2"  # The inference service's alias for its default embedding model.
PRIVATE_UMASK: Final = 0o077  # Only the user may read files with callers' content.
SIGNING_KEY: Final = "PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE"
IDENTITY_VARIABLES: Final = (SIGNING_KEY, "PAGANTIC_VERIFYING_KEYS_FILE")


def local_address(area: str) -> str:
    """Return the default address of a service on this machine, host:port."""
    return f"{HOST}:{PORTS[area]}"


def is_loopback(host: str) -> bool:
    """Return whether a listening address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("unix:")


def expand_home(given: str) -> Path:
    """Return a path with its `~` expanded. Raises ValueError if the named user does not exist."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise ValueError(f"{given.partition('/')[0]} is the home of no user") from None


def path_of(variable: str, given: str) -> Path:
    """Return the absolute path in an environment variable. Raises InvalidRequest if it names an unknown user."""
    try:
        return expand_home(given).absolute()
    except ValueError as error:
        raise InvalidRequest(f"{variable} is {given!r}: {error}") from None


def has_own_identity(environment: Mapping[str, str]) -> bool:
    """Return whether `pagantic up` makes the key pair of tenant tokens.

    It makes the pair if callers need API keys and no variable names a key file.
    """
    auth = environment.get("PAGANTIC_ORCHESTRATOR_AUTH") or environment.get("PAGANTIC_AUTH")
    return auth == "keys" and not any(environment.get(name) for name in IDENTITY_VARIABLES)


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the absolute path of the state folder: PAGANTIC_STATE, or `pagantic` in the user's state home.

    Raises InvalidRequest if PAGANTIC_STATE names an unknown user.
    """
    if folder := environment.get("PAGANTIC_STATE"):
        return path_of("PAGANTIC_STATE", folder)
    home = environment.get("XDG_STATE_HOME")
    return Path(home or home_folder() / ".local" / "state") / "pagantic"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the path of pagantic's folder in the user's cache."""
    return Path(environment.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "pagantic"


def config_folder(environment: Mapping[str, str]) -> Path:
    """Return the path of pagantic's folder in the user's configuration."""
    return Path(environment.get("XDG_CONFIG_HOME") or home_folder() / ".config") / "pagantic"


def home_folder() -> Path:
    """Return the user's home, or the current folder if the user has no home, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path.cwd()
