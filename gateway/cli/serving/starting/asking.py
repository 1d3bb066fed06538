"""Asks the questions of `pagantic init`, or uses their defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import typer

from gateway.cli.failures import EXIT_INTERRUPTED
from gateway.cli.options import ORCHESTRATOR
from gateway.cli.output import UsageError, note
from gateway.cli.running import read_ports
from gateway.cli.serving.doctor import has_bundled_model
from gateway.cli.serving.starting import choices
from gateway.cli.serving.starting.choices import BUNDLED, Choices
from pagantic_common.domain.defaults import HTTP_PORT, PORTS, state_folder
from pagantic_common.models.resolving import NO_MODEL

DEFAULT_MODEL = "smollm2:135m"
_GRPC_SCHEMES = ("dns:", "unix:")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Given:
    """The option values of `pagantic init`. None means that the user is asked for the value."""

    model: str | None
    data: str | None
    http: bool | None
    key: bool | None
    first_port: int | None
    http_port: int | None

    def names(self) -> list[str]:
        """Return the names of the options that were given."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]


class Asker:
    """Asks the user on the terminal, or uses the defaults without asking."""

    def __init__(self, *, is_asking: bool) -> None:
        self.is_asking = is_asking

    def ask(self, question: str, default: str, check: Callable[[str], AnswerT]) -> AnswerT:
        """Return a checked answer, asking again after an invalid answer. Raises UsageError for an invalid default."""
        while self.is_asking:
            try:
                return check(self._typed(lambda: str(typer.prompt(question, default=default, err=True))))
            except UsageError as error:
                note(str(error))
        return check(default)

    def confirm(self, question: str, *, default: bool) -> bool:
        """Ask whether the user agrees and return the answer, or return the default without asking."""
        if not self.is_asking:
            return default
        return self._typed(lambda: typer.confirm(question, default=default, err=True))

    @staticmethod
    def _typed(read: Callable[[], AnswerT]) -> AnswerT:
        try:
            return read()
        except typer.Abort:
            note("\nstopped")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def client_settings(asker: Asker, address: str | None, key_file: str | None) -> dict[str, str]:
    """Return the settings of a client for a remote system.

    The user is asked for values that are None. Raises UsageError if a value is invalid.
    """
    if address is None:
        address = asker.ask("Address of the system", ORCHESTRATOR, _check_address)
    settings = {"PAGANTIC_ADDRESS": _check_address(address)}
    if key_file is None:
        key_file = asker.ask("File of its API key, or none", NO_MODEL, str)
    if key_file not in ("", NO_MODEL):
        path = choices.absolute("--key-file", key_file)
        if not path.is_file():
            raise UsageError(f"--key-file {str(path)!r}: there is no such file")
        settings["PAGANTIC_API_KEY_FILE"] = str(path)
    return settings


def _check_address(address: str) -> str:
    if address.startswith(_GRPC_SCHEMES):
        return address
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        is_whole = place.hostname and (place.scheme == "https" or (place.scheme in ("", "http") and place.port))
    except ValueError:
        is_whole = False
    if is_whole:
        return address
    raise UsageError(f"{address!r} is no address: write host:port, or https://host:port")


def choose(asker: Asker, given: Given) -> Choices:
    """Ask for the values that the options do not set. Raises UsageError if a value is invalid."""
    model, data, http, key = given.model, given.data, given.http, given.key
    if model is None:
        model = asker.ask(
            f"Model: a name of `pagantic models --catalog`, a GGUF file, {BUNDLED}, or {NO_MODEL}",
            BUNDLED if has_bundled_model() else DEFAULT_MODEL,
            _checked_model,
        )
    model = _checked_model(model)
    if data is None:
        data = str(
            asker.ask("Folder of journals, collections and logs", str(state_folder(os.environ)), choices.check_data)
        )
    folder = choices.check_data(data)
    own = read_ports({"PAGANTIC_STATE": str(folder)})
    if http is None:
        http = given.http_port is not None or asker.confirm(
            "Console and APIs over HTTP, for this machine alone?", default=True
        )
    if key is None:
        key = asker.confirm("Let in callers with an API key alone?", default=False)
    first_port = _first_port(asker, given.first_port, own)
    services = choices.ports_from(first_port)
    return Choices(
        model=model,
        data=folder,
        http_port=_http_port(asker, given.http_port, own, services) if http else 0,
        key_file=folder / "identity" / "admin-key" if key else None,
        first_port=first_port,
    )


def _checked_model(given: str) -> str:
    if given == BUNDLED and not has_bundled_model():
        raise UsageError(f"no model is bundled with this installation: --model {DEFAULT_MODEL} is the same one")
    return choices.check_model(given)


def _first_port(asker: Asker, given: int | None, own: set[int]) -> int:
    usual = PORTS["orchestrator"]
    if given is not None:
        return choices.check_ports(given, own)
    if not choices.taken_ports(choices.ports_from(usual).values(), own):
        return usual
    note(f"other programs listen on some of the ports {usual} to {usual + len(PORTS) - 1}")
    return asker.ask(
        f"First of {len(PORTS)} ports",
        str(choices.free_block(usual, own)),
        lambda answer: choices.check_ports(_number(answer), own),
    )


def _http_port(asker: Asker, given: int | None, own: set[int], services: Mapping[str, int]) -> int:
    ports = services.values()

    def check(port: int) -> int:
        if port in ports:
            area = next(area for area, other in services.items() if other == port)
            problem = f"it is that of the {area} service"
        elif choices.taken_ports((port,), own):
            problem = "it is in use"
        else:
            return port
        raise UsageError(f"--http-port {port}: {problem}; {choices.free_port(port, own, ports)} would be free")

    if given is not None:
        return check(given)
    if HTTP_PORT not in ports and not choices.taken_ports((HTTP_PORT,), own):
        return HTTP_PORT
    note(f"another program, or a service of this system, has port {HTTP_PORT}")
    free = choices.free_port(HTTP_PORT, own, ports)
    return asker.ask("Port for HTTP", str(free), lambda answer: check(_number(answer)))


def _number(answer: str) -> int:
    if not answer.isdecimal() or not 1 <= int(answer) <= choices.MAX_PORT:
        raise UsageError(f"{answer!r} is no port: it is a number between 1 and {choices.MAX_PORT}")
    return int(answer)
