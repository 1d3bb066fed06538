"""Holds and checks the choices of `pagantic init`, and turns them into the text of the settings file."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.output import UsageError
from pagantic_common.domain.defaults import HOST, HTTP_PORT, PORTS, expand_home
from pagantic_common.domain.errors import NotFound
from pagantic_common.models.catalog import catalog, find_in_catalog
from pagantic_common.models.folder import SUFFIX, ModelFolder
from pagantic_common.models.resolving import NO_MODEL
from pagantic_common.models.settings import models_folder

BUNDLED = "bundled"
MAX_PORT = 65535
BLOCK = 100  # Distance between the blocks of ports that are tried.
_MAGIC = b"GGUF"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+,=-]+")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices for the settings file.

    Args:
        model: Name of a pulled model or of a model in the catalog, absolute path of a GGUF file, `bundled` or `none`.
        data: Folder for state.
        http_port: Port of the HTTP gateway; 0 keeps `pagantic up` from starting it.
        key_file: The file of the operator's API key. With None, callers need no key.
        first_port: Port of the orchestrator. The other services use the ports that follow.
    """

    model: str
    data: Path
    http_port: int
    key_file: Path | None
    first_port: int

    def settings(self) -> dict[str, str]:
        """Return the variables of the settings file."""
        variables = {"PAGANTIC_STATE": str(self.data)}
        if self.model != BUNDLED:
            variables["PAGANTIC_INFERENCE_MODEL_PATH"] = self.model
        if self.first_port != PORTS["orchestrator"]:
            variables |= {
                f"PAGANTIC_{area.upper()}_PORT": str(port) for area, port in ports_from(self.first_port).items()
            }
        variables["PAGANTIC_SERVE_HTTP"] = "on" if self.http_port else "off"
        if self.http_port not in (0, HTTP_PORT):
            variables["PAGANTIC_HTTP_PORT"] = str(self.http_port)
        if self.key_file is not None:
            variables["PAGANTIC_ORCHESTRATOR_AUTH"] = "keys"
            variables["PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE"] = str(self.key_file)
            variables["PAGANTIC_API_KEY_FILE"] = str(self.key_file)
            # Without this setting, the gateway would use its own key, the operator's, for all callers without a key.
            variables["PAGANTIC_HTTP_AUTH"] = "keys"
        return variables


_COMMENTS = {
    "PAGANTIC_ADDRESS": "The system that the commands call.",
    "PAGANTIC_STATE": "Folder of journals, collections and logs.",
    "PAGANTIC_INFERENCE_MODEL_PATH": "Name of a pulled model, or a GGUF file; `none` is for other engines alone.",
    "PAGANTIC_ORCHESTRATOR_PORT": "Ports of the services.",
    "PAGANTIC_SERVE_HTTP": "Whether `pagantic up` starts the console and the APIs over HTTP too.",
    "PAGANTIC_ORCHESTRATOR_AUTH": "Callers need an API key; `pagantic keys create` makes more.",
    "PAGANTIC_API_KEY_FILE": "The key that the commands send.",
}


def text_of(settings: Mapping[str, str]) -> str:
    """Return the text of a settings file."""
    lines = [
        "# Settings of pagantic, written by `pagantic init`. Variables of the environment win over them.",
        "# `pagantic doctor` checks this file; the page settings.md of the documentation has every setting.",
    ]
    for name, value in settings.items():
        if comment := _COMMENTS.get(name):
            lines += ["", f"# {comment}"]
        lines.append(f"{name}={_quoted(value)}")
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """Quote a value for the file. Except for very rare values, shells can also read the result."""
    if _PLAIN.fullmatch(value):
        return value
    if not {"'", "\\"}.intersection(value):
        return f"'{value}'"
    if not set("$`!").intersection(value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def absolute(option: str, given: str) -> Path:
    """Return an absolute path. Raises UsageError if `~` in the path names an unknown user."""
    try:
        return expand_home(given).absolute()
    except ValueError as error:
        raise UsageError(f"{option} {given!r}: {error}") from None


def check_model(given: str) -> str:
    """Return the settings file's text for a model. Raises UsageError if its name is unknown or its file is invalid."""
    if given in (BUNDLED, NO_MODEL) or ModelFolder(models_folder()).find(given) is not None:
        return given
    path = absolute("--model", given)
    if "/" in given or given.endswith(SUFFIX) or path.is_file():
        _check_file(path)
        return str(path)
    try:
        return find_in_catalog(given).name
    except NotFound as error:
        raise UsageError(f"--model: {error} (a GGUF file, `{BUNDLED}` and `{NO_MODEL}` are other choices)") from None


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise UsageError(f"--model {str(path)!r}: {(error.strerror or str(error)).lower()}") from None
    if magic != _MAGIC:
        raise UsageError(f"--model {str(path)!r}: it is no GGUF file")


def is_to_pull(model: str) -> bool:
    """Return whether a model is in the catalog but has not been pulled."""
    return model in catalog() and ModelFolder(models_folder()).find(model) is None


def check_data(given: str) -> Path:
    """Return the absolute path of the state folder without creating it.

    Raises UsageError if this user cannot write to the folder.
    """
    path = absolute("--data", given).resolve()
    if "%" in str(path) or "\n" in str(path):
        raise UsageError(f"--data {str(path)!r}: the path of this folder may have no % and no line break")
    place = next(parent for parent in (path, *path.parents) if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"--data {str(path)!r}: {str(place)!r} is no folder that this user can write")
    return path


def ports_from(first: int) -> dict[str, int]:
    """Return the port of each service, beginning with the orchestrator."""
    return {area: first + offset for offset, area in enumerate(PORTS)}


def check_ports(first: int, own: Iterable[int]) -> int:
    """Return the first port.

    Raises UsageError if a port is out of range, or is in use by a program other than the system itself.
    """
    if not 1 <= first <= MAX_PORT + 1 - len(PORTS):
        raise UsageError(f"--first-port {first}: {len(PORTS)} ports from it on must be between 1 and {MAX_PORT}")
    if busy_ports := taken_ports(ports_from(first).values(), own):
        raise UsageError(f"--first-port {first}: {_list(busy_ports)} in use; {free_block(first, own)} would be free")
    return first


def free_block(first: int, own: Iterable[int]) -> int:
    """Return the first port of the nearest block of free ports, or the given port if no block is free."""
    for start in range(first, MAX_PORT - len(PORTS), BLOCK):
        if not taken_ports(ports_from(start).values(), own):
            return start
    return first


def free_port(first: int, own: Iterable[int], services: Collection[int]) -> int:
    """Return the nearest free port that is not a service's port, or the given port if no port is free."""
    ports = (port for port in range(first, MAX_PORT + 1) if port not in services)
    return next((port for port in ports if not taken_ports((port,), own)), first)


def taken_ports(ports: Iterable[int], own: Iterable[int]) -> list[int]:
    """Return the ports on which another program listens."""
    kept = set(own)
    return [port for port in ports if port not in kept and not _is_free(port)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _list(ports: list[int]) -> str:
    if len(ports) == 1:
        return f"port {ports[0]} is"
    return f"ports {', '.join(map(str, ports))} are"
