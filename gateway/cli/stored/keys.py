"""Commands for API keys."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.completion import words
from gateway.cli.operator_token import find_signing_key, sign
from gateway.cli.output import UsageError, note, print_json, reporting_errors, say, show
from gateway.cli.tree import PlainCommand
from pagantic.orchestrator.v1 import key_pb2, orchestrator_service_pb2
from pagantic_common.client import Client
from pagantic_common.client.tables import cell, list_table
from pagantic_common.codec.fields import name_of
from pagantic_common.domain.calls.api_keys import make_key
from pagantic_common.domain.defaults import PORTS, SIGNING_KEY

_LIFETIME = re.compile(r"(\d{1,4})([dhm])")
_SECONDS = {"d": 86_400, "h": 3600, "m": 60}
_PREFIX = "KEY_SCOPE_"
_SCOPES = [name.removeprefix(_PREFIX).lower() for name, value in key_pb2.KeyScope.items() if value]
_BEHIND = [area for area in PORTS if area != "orchestrator"]

keys = typer.Typer(help="Create, list and revoke the API keys of callers.", no_args_is_help=True)


@keys.command("new", cls=PlainCommand)
def new_key() -> None:
    """Print a fresh key for the orchestrator's ADMIN_KEY_FILE.

    The key is not stored. It becomes valid once the file contains it as a line.
    """
    say(make_key(os.urandom).text)


@keys.command("token", cls=PlainCommand)
def make_token(
    service: Annotated[
        str,
        typer.Argument(metavar="SERVICE", help="inference, tools, ...", autocompletion=words(_BEHIND)),
    ],
    *,
    expires: Annotated[str, typer.Option(metavar="TIME", help="Lifetime, such as 90d, 12h or 30m.")] = "1h",
) -> None:
    """Print a token for a program that calls a service behind the orchestrator, such as one that offers tools.

    It is signed with the orchestrator's key, opens everything, and cannot be revoked while that key is valid.
    """
    with reporting_errors():
        if service not in _BEHIND:
            raise UsageError(f"{service!r} is no service behind the orchestrator: name {', '.join(_BEHIND)}")
        path = find_signing_key()
        if path is None:
            raise UsageError(
                f"put the path of the orchestrator's key into {SIGNING_KEY}; this user must be able to read it"
            )
        say(sign(service, path, _seconds_of(expires) or None).removeprefix("Bearer "))


@keys.command("create", cls=PlainCommand)
def create_key(
    subject: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key's holder.")],
    *,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Tenant whose data the holder sees.")] = "default",
    scopes: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="What the holder may do: execute, read, write, usage, admin.",
            autocompletion=words(_SCOPES),
        ),
    ] = "execute,read",
    expires: Annotated[str, typer.Option(metavar="TIME", help="Lifetime, such as 90d, 12h or 30m.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the key and its text as JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Create a key and print its text, which is shown only now."""
    with reporting_errors():
        key_scopes, lifetime_s = _scopes_of(scopes), _seconds_of(expires)
        with Client(address, timeout_s=timeout) as client:
            key, text = client.create_key(subject, key_scopes, tenant=tenant, lifetime_s=lifetime_s)
    if as_json:
        print_json(orchestrator_service_pb2.CreateKeyResponse(key=key, text=text))
        return
    say(text)
    note(f"key {key.key_id} of {key.subject}, tenant {key.tenant}; keep the line above, it is not shown again")


@keys.command("list", cls=PlainCommand)
def list_keys(
    *,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Only keys of this tenant.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print each key as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List keys, the oldest first."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        stored = client.list_keys(tenant=tenant)
    if as_json:
        for key in stored:
            print_json(key, one_line=True)
        return
    table = list_table(("key", "tenant", "holder", "scopes", "state"))
    for key in stored:
        table.add_row(*map(cell, (key.key_id, key.tenant, key.subject, _names_of(key), _state_of(key))))
    show(table)


@keys.command("revoke", cls=PlainCommand)
def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="Id of the key, as `pagantic keys list` shows it.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the key as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Revoke a key: within seconds it is refused, and calls that run with it end."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        key = client.revoke_key(key_id)
    if as_json:
        print_json(key, one_line=True)
        return
    note(f"{key.key_id} of {key.subject} is revoked")


def _scopes_of(text: str) -> list[key_pb2.KeyScope.ValueType]:
    scopes = {name.removeprefix(_PREFIX).lower(): number for name, number in key_pb2.KeyScope.items() if number}
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names or not scopes.keys() >= set(names):
        raise UsageError(f"--scopes {text!r}: name some of {', '.join(scopes)}, with commas between")
    return [scopes[name] for name in names]


def _seconds_of(text: str) -> float | None:
    if not text:
        return None
    match = _LIFETIME.fullmatch(text)
    if match is None:
        raise UsageError(f"--expires {text!r}: use a number and d, h or m, such as 90d")
    return float(int(match[1]) * _SECONDS[match[2]])


def _names_of(key: key_pb2.Key) -> str:
    return ", ".join(name_of(key_pb2.KeyScope, scope, _PREFIX).lower() for scope in key.scopes)


def _state_of(key: key_pb2.Key) -> str:
    if key.HasField("revoked_at"):
        return "revoked"
    if not key.HasField("expires_at"):
        return "valid"
    expires_at = key.expires_at.ToDatetime(UTC)
    day = expires_at.strftime("%Y-%m-%d %H:%M")
    if expires_at <= datetime.now(UTC):
        return f"expired {day}"
    return f"valid until {day}"
