"""Commands that list and verify the records of the audit."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.failures import EXIT_FAILED
from gateway.cli.output import UsageError, note, print_json, reporting_errors, say, say_json, show
from gateway.cli.tree import PlainCommand
from pagantic.orchestrator.v1 import audit_pb2
from pagantic_common.client import Client
from pagantic_common.client.tables import cell, list_table
from pagantic_common.codec.fields import name_of
from pagantic_common.domain.calls.audit import AuditEntry, AuditRecord, Problem, find_problems
from pagantic_common.domain.text.json_text import dump_json

_PREFIX = "AUDIT_DECISION_"
_HEAD = re.compile(r"(?P<owner>.+):(?P<position>\d{1,18}):(?P<digest>[0-9a-f]{64})")
SHOWN_PROBLEMS = 20

audit = typer.Typer(help="List and verify the records of who asked for what.", no_args_is_help=True)


@audit.command("list", cls=PlainCommand)
def list_records(
    *,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Only records of this tenant's callers.")] = "",
    last: Annotated[int, typer.Option(metavar="N", min=1, help="Show the last N records.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List the newest records; --json prints all of them, by orchestrator."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        records = _records(client, tenant)
        if as_json:
            for record in records:
                print_json(record, one_line=True)
            return
        newest = heapq.nlargest(last, records, key=lambda record: record.at.ToMicroseconds())
    _show(reversed(newest))


def _show(records: Iterable[audit_pb2.AuditRecord]) -> None:
    table = list_table(("time (UTC)", "tenant", "who", "method", "of", "request", "decision"))
    for record in records:
        time = record.at.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S")
        decision = record.code or name_of(audit_pb2.AuditDecision, record.decision, _PREFIX).lower()
        who = f"{record.subject} ({record.kind})" if record.subject else ""
        texts = (time, record.tenant, who, record.method, record.resource, record.request_id, decision)
        table.add_row(*map(cell, texts))
    show(table)


@audit.command("verify", cls=PlainCommand)
def verify(
    *,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the secret of the audit (AUDIT_KEY_FILE).")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="HEAD", help="A head that an earlier run printed; it must still be there. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the heads and the problems as JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Compute every hash again, and print the head of each chain.

    Keep the heads elsewhere: with `--head` a later run also finds that records were removed from the end.
    """
    with reporting_errors():
        key = b"" if key_file is None else _read_key(key_file)
        heads = dict(map(_head_of, head or []))
        with Client(address, timeout_s=timeout) as client:
            chains = _Chains(heads)
            problems = list(find_problems(chains.pass_on(_records(client, "")), key))
    problems += chains.missing_heads()
    if as_json:
        _print_verified(chains, problems)
    else:
        _show_verified(chains, problems)
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _print_verified(chains: _Chains, problems: Sequence[Problem]) -> None:
    verified = {
        "records": chains.count,
        "heads": [_head_text(record) for record in chains.last.values()],
        "problems": [
            {"owner": problem.owner, "position": problem.position, "what": problem.what} for problem in problems
        ],
    }
    say_json(dump_json(verified))


def _show_verified(chains: _Chains, problems: Sequence[Problem]) -> None:
    for problem in problems[:SHOWN_PROBLEMS]:
        typer.secho(f"{problem.owner}: record {problem.position} {problem.what}", err=True, fg=typer.colors.RED)
    if len(problems) > SHOWN_PROBLEMS:
        note(f"and {len(problems) - SHOWN_PROBLEMS} more")
    if problems:
        return
    for record in chains.last.values():
        say(_head_text(record))
    for owner, position in chains.first.items():
        note(f"the chain of {owner} begins with record {position}")
    note(f"{chains.count} records fit together; keep the heads above for --head")


class _Chains:
    """The state of the chains, updated as their records pass through."""

    def __init__(self, heads: dict[tuple[str, int], str]) -> None:
        self._heads = heads
        self.first: dict[str, int] = {}
        self.last: dict[str, AuditRecord] = {}
        self.count = 0

    def pass_on(self, records: Iterator[audit_pb2.AuditRecord]) -> Iterator[AuditRecord]:
        """Decode the records, update the state of their chains, and yield the decoded records."""
        for encoded in records:
            record = _decode(encoded)
            self.first.setdefault(record.owner, record.position)
            self.last[record.owner] = record
            self.count += 1
            if self._heads.get((record.owner, record.position)) == record.digest.hex():
                del self._heads[record.owner, record.position]
            yield record

    def missing_heads(self) -> list[Problem]:
        """Return a problem for each given head that matched no record."""
        return [Problem(owner, position, "is not the one of --head") for owner, position in self._heads]


def _records(client: Client, tenant: str) -> Iterator[audit_pb2.AuditRecord]:
    token = ""
    while True:
        page = client.list_audit_records(tenant=tenant, page_token=token)
        yield from page.records
        if not (token := page.next_page_token):
            return


def _decode(record: audit_pb2.AuditRecord) -> AuditRecord:
    entry = AuditEntry(
        record.at.ToMicroseconds(),
        record.tenant,
        record.subject,
        record.kind,
        record.key_id,
        record.method,
        record.resource,
        record.request_id,
        name_of(audit_pb2.AuditDecision, record.decision, _PREFIX).lower(),
        record.code,
    )
    return AuditRecord(record.orchestrator, record.position, entry, record.previous, record.digest)


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {(error.strerror or str(error)).lower()}") from None


def _head_text(record: AuditRecord) -> str:
    return f"{record.owner}:{record.position}:{record.digest.hex()}"


def _head_of(text: str) -> tuple[tuple[str, int], str]:
    match = _HEAD.fullmatch(text)
    if match is None:
        raise UsageError(f"--head {text[:80]!r}: use a line that `pagantic audit verify` printed")
    return (match["owner"], int(match["position"])), match["digest"]
